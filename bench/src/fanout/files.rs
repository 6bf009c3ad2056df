//! Open files: a server and its clients have one for each connection, each side in its own process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::subject::OTHER_FILES;

/// Allows as many as can be allowed, here and in all processes that are started from now on.
pub(super) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Where it is refused, the old one stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Why so many clients cannot be measured here, where they cannot.
pub(super) fn too_many(clients: usize, limit: u64) -> Option<String> {
    let needed = (clients + OTHER_FILES) as u64;
    (needed > limit).then(|| {
        format!(
            "{clients} clients do not fit: the server and the load need {needed} open files each, \
             and this user may have {limit}. `ulimit -Hn`, `LimitNOFILE=` or \
             /etc/security/limits.conf raise that.\n"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_explained() {
        assert!(raise_limit() > 0);
        assert_eq!(too_many(10_000, 20_000), None);
        assert!(too_many(10_000, 4_096).unwrap().contains("4096"));
    }
}
