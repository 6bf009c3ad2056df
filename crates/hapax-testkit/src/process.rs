//! One server process, and what the kernel reports about processes.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::cleanup;
use crate::ports::PortTaken;
use crate::wait::{START_TIMEOUT, wait_or_explain};

/// Long, because a signal takes effect late on an overloaded machine.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(60);

/// The methods of every server: its port, its process, and its log. The arguments are the methods of [`Process`]
/// that pause, continue and kill it.
macro_rules! server_methods {
    ($stop:ident, $cont:ident, $kill:ident) => {
        /// The port it listens on.
        pub fn port(&self) -> u16 {
            self.port
        }

        /// The server's process number; `None` after [`kill`](Self::kill).
        pub fn pid(&self) -> Option<i32> {
            self.process.pid().map(nix::unistd::Pid::as_raw)
        }

        /// Pauses the server (SIGSTOP): connections stay open, nothing is answered.
        pub fn stop(&self) {
            self.process.$stop();
        }

        /// Lets a paused server continue (SIGCONT).
        pub fn cont(&self) {
            self.process.$cont();
        }

        /// Kills the server (SIGKILL). Does nothing if it does not run.
        pub fn kill(&self) {
            self.process.$kill();
        }

        /// Starts the server again, on the same port and with the same data, and returns when it answers;
        /// kills it first if it still runs.
        pub fn restart(&self) {
            self.kill();
            if self.run().is_err() {
                panic!("port {} was taken\n{}", self.port, self.log_tail());
            }
        }

        /// The end of the server's log, for messages.
        pub fn log_tail(&self) -> String {
            self.process.log_tail()
        }
    };
}
pub(crate) use server_methods;

pub(crate) struct Process {
    name: String,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// Starts nothing yet; `name` is for messages.
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
            // A group of its own: Ctrl-C ends the tests only, and then the cleanup script ends the servers.
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        cleanup::register(pid_of(&spawned));
        *child = Some(spawned);
    }

    /// Waits until `answers` returns true.
    pub(crate) fn wait_until_ready(
        &self,
        mut answers: impl FnMut() -> bool,
    ) -> Result<(), PortTaken> {
        let what = format!("{} answers", self.name);
        wait_or_explain(
            &what,
            START_TIMEOUT,
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

    /// `None` after a kill.
    pub(crate) fn pid(&self) -> Option<Pid> {
        self.child().as_ref().map(pid_of)
    }

    /// Whether the process runs and is not paused.
    pub(crate) fn is_awake(&self) -> bool {
        self.pid().is_some_and(|pid| !is_dead(pid) && !is_stopped(pid))
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.pid().is_none_or(is_dead)
    }

    /// Pauses the process, and returns when it is paused.
    pub(crate) fn stop(&self) {
        self.stop_one(self.running_pid());
    }

    /// Pauses the process, and returns when none of its threads is in a system call any more: a thread ends its call
    /// before it stops.
    pub(crate) fn stop_all_threads(&self) {
        let pid = self.running_pid();
        self.stop_one(pid);
        self.wait_until("is paused with all threads", SIGNAL_TIMEOUT, || {
            is_dead(pid) || threads_of(pid).iter().all(|thread| is_stopped(*thread))
        });
    }

    /// Pauses the process and its children; the parent first, so that it starts no more children.
    pub(crate) fn stop_family(&self) {
        let parent = self.running_pid();
        self.stop_one(parent);
        for child in children_of(parent) {
            self.stop_one(child);
        }
    }

    pub(crate) fn cont(&self) {
        let _ = kill(self.running_pid(), Signal::SIGCONT);
    }

    pub(crate) fn cont_family(&self) {
        let parent = self.running_pid();
        for child in children_of(parent) {
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
        // A paused process starts no more children.
        self.stop_one(pid);
        let children = children_of(pid);
        let _ = parent.kill();
        for child in &children {
            let _ = kill(*child, Signal::SIGKILL);
        }
        self.wait_until("is dead", SIGNAL_TIMEOUT, || children.iter().all(|pid| is_dead(*pid)));
        reap(&mut parent);
    }

    /// Asks the process to end (SIGTERM), and returns when it and its children have.
    pub(crate) fn terminate(&self) {
        let _ = kill(self.running_pid(), Signal::SIGTERM);
        self.wait_until("ends", START_TIMEOUT, || self.has_exited());
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
        self.wait_until("is paused", SIGNAL_TIMEOUT, || is_stopped(pid) || is_dead(pid));
    }

    fn wait_until(&self, what: &str, timeout: Duration, mut reached: impl FnMut() -> bool) {
        let what = format!("{} {what}", self.name);
        wait_or_explain(&what, timeout, || reached().then_some(()), || self.log_tail());
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
    cleanup::unregister(pid_of(child));
    let _ = child.wait();
}

struct Stat {
    state: char,
    parent: i32,
}

fn stat(pid: i32) -> Option<Stat> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before the last bracket may contain any character.
    let (_, after_name) = line.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace();
    Some(Stat { state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
}

fn is_stopped(pid: Pid) -> bool {
    stat(pid.as_raw()).is_some_and(|stat| matches!(stat.state, 'T' | 't'))
}

/// Whether the process is gone, or dead and not reaped yet.
fn is_dead(pid: Pid) -> bool {
    stat(pid.as_raw()).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

fn threads_of(pid: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .map(Pid::from_raw)
        .collect()
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
        .filter(|pid| stat(*pid).is_some_and(|stat| stat.parent == parent.as_raw()))
        .map(Pid::from_raw)
        .collect()
}
