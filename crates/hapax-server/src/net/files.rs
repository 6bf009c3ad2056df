//! How many connections the system lets us have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many open files as we may have: each connection is one, and what shells give is for
/// programs with a few. Says so where it is less than what is configured.
pub(crate) fn make_room(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let limit = if raised { maximum } else { current };
    if limit.is_some_and(|limit| limit < connections as u64) {
        let limit = limit.unwrap_or_default();
        tracing::warn!(
            limit,
            connections,
            "the system allows fewer open files than connections are configured; raise it (ulimit -n)"
        );
    }
}
