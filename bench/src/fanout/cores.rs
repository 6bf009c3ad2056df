//! Which processor cores are whose: the server has one, the load the others.

use std::path::Path;
use std::process::Command;

use hapax_testkit::find_binary;

/// Both sides have the same core, and one worker: nginx is told so, and hapax starts as many threads
/// as it has cores.
pub(super) struct Cores {
    /// How the load's are named; `None` where nothing is pinned.
    load: Option<String>,
}

impl Cores {
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
