//! Limits of the server and of the load: which cores they run on, and how many files they may open.

use std::path::Path;
use std::process::Command;

use hapax_testkit::find_binary;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::server::OTHER_FILES;

/// Pins both servers to the same core with one worker: nginx is configured so, and hapax starts as many
/// threads as it has cores.
pub(super) struct CorePinning {
    /// The cores of the load as `taskset` names them; `None` where nothing is pinned.
    load: Option<String>,
}

impl CorePinning {
    pub(super) fn share() -> Self {
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        let can = last > 0 && find_binary("taskset").is_ok();
        Self { load: can.then(|| format!("1-{last}")) }
    }

    pub(super) fn description(&self) -> &'static str {
        match self.load {
            Some(_) => "the server has one core and one worker, the load has the others",
            None => {
                "NOTHING IS PINNED (one core, or no `taskset`): nginx has one worker, hapax as many \
                 threads as there are cores"
            }
        }
    }

    /// A command of the server.
    pub(super) fn server(&self, program: &Path) -> Command {
        pinned(self.load.as_ref().map(|_| "0"), program)
    }

    /// A command of the load.
    pub(super) fn load(&self, program: &Path) -> Command {
        pinned(self.load.as_deref(), program)
    }
}

fn pinned(cores: Option<&str>, program: &Path) -> Command {
    let pin = cores.zip(find_binary("taskset").ok());
    let Some((cores, taskset)) = pin else { return Command::new(program) };
    let mut command = Command::new(taskset);
    command.args(["-c", cores]).arg(program);
    command
}

/// Raises the soft limit to the hard one, for this process and all that it starts.
pub(super) fn raise_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // Ignore a refusal: the old limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Explains why this many clients cannot be measured, where that is so.
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
    fn too_many_clients_are_explained() {
        assert!(raise_limit() > 0);
        assert_eq!(too_many(10_000, 20_000), None);
        assert!(too_many(10_000, 4_096).unwrap().contains("4096"));
    }
}
