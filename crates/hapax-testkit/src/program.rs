//! Any other program that a test starts, pauses, kills and starts again.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use crate::cleanup;
use crate::process::Process;

/// A program of a test's own, killed when dropped, or by the cleanup script if the test process dies first. It is not
/// waited for, because the test knows best when it is ready.
pub struct Program {
    // Fields are dropped in this order: the program ends before its folder is removed.
    process: Process,
    command: Mutex<Command>,
    _folder: TempDir,
}

impl Program {
    /// Starts a command. Its output goes to a log; `name` is for messages.
    pub fn start(name: &str, command: Command) -> Self {
        let folder = cleanup::temp_folder("program-");
        let process = Process::new(name.to_owned(), folder.path().join("log"));
        let program = Self { process, command: Mutex::new(command), _folder: folder };
        program.spawn();
        program
    }

    fn spawn(&self) {
        let mut command = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.spawn(&mut command);
    }

    /// Kills it (SIGKILL). Does nothing if it does not run.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Starts it again; kills it first if it still runs.
    pub fn restart(&self) {
        self.kill();
        self.spawn();
    }

    /// Starts another command in its place, now and after every restart; kills it first if it still runs.
    pub fn restart_as(&self, command: Command) {
        self.kill();
        *self.command.lock().unwrap_or_else(PoisonError::into_inner) = command;
        self.spawn();
    }

    /// Pauses it (SIGSTOP): connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Pauses it (SIGSTOP), and returns when none of its threads is in a system call any more.
    pub fn stop_all_threads(&self) {
        self.process.stop_all_threads();
    }

    /// Lets it continue (SIGCONT).
    pub fn cont(&self) {
        self.process.cont();
    }

    /// The process number of the program; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<i32> {
        self.process.pid().map(nix::unistd::Pid::as_raw)
    }

    /// Whether it has ended, by itself or by a kill.
    pub fn has_ended(&self) -> bool {
        self.process.has_exited()
    }

    /// The end of its output, for messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
