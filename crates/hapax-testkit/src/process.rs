//! One server process: started, paused, killed, and started again.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ports::PortTaken;
use crate::wait::{READY, wait_or_explain};
use crate::{janitor, procfs};

/// A signal takes effect at once, save on a machine that is badly overloaded.
const SIGNAL: Duration = Duration::from_secs(60);

pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Nothing runs yet; `name` is for messages.
    pub(crate) fn new(name: String, log: PathBuf) -> Self {
        Self { name, log, child: Mutex::new(None) }
    }

    pub(crate) fn spawn(&self, command: &mut Command) {
        let mut child = self.child();
        assert!(child.is_none(), "{} runs already", self.name);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("cannot open the server's log");
        let spawned = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("cannot share the server's log"))
            .stderr(log)
            // Ctrl-C reaches the tests only; the janitor ends the servers.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        janitor::watch(pid_of(&spawned));
        *child = Some(spawned);
    }

    /// Waits until `answers` says so.
    pub(crate) fn wait_until_ready(
        &self,
        mut answers: impl FnMut() -> bool,
    ) -> Result<(), PortTaken> {
        let what = format!("{} answers", self.name);
        wait_or_explain(
            &what,
            READY,
            || {
                if !self.has_exited() {
                    return answers().then_some(Ok(()));
                }
                let log = self.log_tail();
                let taken = log.to_lowercase().contains("address already in use");
                assert!(taken, "{} ended while it started\n{log}", self.name);
                Some(Err(PortTaken))
            },
            || self.log_tail(),
        )
    }

    /// `None` when it was killed.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.child().as_ref().map(pid_of)
    }

    /// Runs and is not paused, so that a question to it has a chance of an answer.
    pub(crate) fn is_awake(&self) -> bool {
        self.pid().is_some_and(|pid| !procfs::is_dead(pid) && !procfs::is_stopped(pid))
    }

    fn has_exited(&self) -> bool {
        self.pid().is_none_or(procfs::is_dead)
    }

    /// Pauses the process, and returns when it stands still.
    pub(crate) fn stop(&self) {
        self.stop_one(self.running_pid());
    }

    /// Pauses the process and its children. The parent goes first, and makes no more children.
    pub(crate) fn stop_family(&self) {
        let parent = self.running_pid();
        self.stop_one(parent);
        for child in procfs::children_of(parent) {
            self.stop_one(child);
        }
    }

    pub(crate) fn cont(&self) {
        let _ = kill(self.running_pid(), Signal::SIGCONT);
    }

    pub(crate) fn cont_family(&self) {
        let parent = self.running_pid();
        for child in procfs::children_of(parent) {
            let _ = kill(child, Signal::SIGCONT);
        }
        let _ = kill(parent, Signal::SIGCONT);
    }

    /// Kills the process; harmless when nothing runs. Its children live on.
    pub(crate) fn kill(&self) {
        let Some(mut child) = self.child().take() else {
            return;
        };
        let _ = child.kill();
        reap(&mut child);
    }

    /// Kills the process and its children, and returns when all are dead.
    pub(crate) fn kill_family(&self) {
        let Some(mut parent) = self.child().take() else {
            return;
        };
        let pid = pid_of(&parent);
        // A process that stands still makes no more children that would be missed here.
        self.stop_one(pid);
        let children = procfs::children_of(pid);
        let _ = parent.kill();
        for child in &children {
            let _ = kill(*child, Signal::SIGKILL);
        }
        self.wait_for_signal("is dead", || children.iter().all(|pid| procfs::is_dead(*pid)));
        reap(&mut parent);
    }

    /// Asks the process to end (SIGTERM), and returns when it and its children have.
    pub(crate) fn terminate(&self) {
        let _ = kill(self.running_pid(), Signal::SIGTERM);
        let what = format!("{} ends", self.name);
        wait_or_explain(&what, READY, || self.has_exited().then_some(()), || self.log_tail());
        self.kill_family();
    }

    /// The end of what the server wrote to its log.
    pub(crate) fn log_tail(&self) -> String {
        const LINES: usize = 40;
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LINES)..];
        format!("-- end of {}'s log --\n{}", self.name, tail.join("\n"))
    }

    fn stop_one(&self, pid: Pid) {
        let _ = kill(pid, Signal::SIGSTOP);
        self.wait_for_signal("stands still", || procfs::is_stopped(pid) || procfs::is_dead(pid));
    }

    fn wait_for_signal(&self, what: &str, mut reached: impl FnMut() -> bool) {
        let what = format!("{} {what}", self.name);
        wait_or_explain(&what, SIGNAL, || reached().then_some(()), || self.log_tail());
    }

    fn running_pid(&self) -> Pid {
        self.pid().unwrap_or_else(|| panic!("{} does not run", self.name))
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

fn reap(child: &mut Child) {
    janitor::forget(pid_of(child));
    let _ = child.wait();
}
