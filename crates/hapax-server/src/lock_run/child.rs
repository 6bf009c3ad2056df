//! The command that runs under the lock.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::Command;

/// A running command.
pub(super) struct Child {
    process: tokio::process::Child,
    pid: Option<Pid>,
    /// Whether it leads a process group of its own. At a terminal it does not: it could not read
    /// from it, and the keyboard's signals reach it by themselves.
    leads: bool,
}

impl Child {
    pub(super) fn start(command: &[OsString], fence: u64) -> io::Result<Self> {
        let leads = !io::stdin().is_terminal();
        let mut start = Command::from(super::tied::command(command));
        start.env("HAPAX_FENCE", fence.to_string()).kill_on_drop(true);
        if leads {
            start.process_group(0);
        }
        let process = start.spawn()?;
        let pid = process.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Ok(Self { process, pid, leads })
    }

    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.process.wait().await
    }

    /// Passes a signal on that this process got.
    pub(super) fn pass_on(&self, signal: i32) {
        let from_keyboard = [Signal::INT, Signal::QUIT].map(Signal::as_raw).contains(&signal);
        if let Some(signal) = Signal::from_named_raw(signal)
            && (self.leads || !from_keyboard)
        {
            self.tell(signal);
        }
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        self.tell(Signal::TERM);
    }

    /// Ends it.
    pub(super) fn kill(&self) {
        self.tell(Signal::KILL);
    }

    /// Ends what it left running in its group, after it has ended itself.
    pub(super) fn kill_rest(&self) {
        if let (true, Some(pid)) = (self.leads, self.pid) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }

    /// Only while it has not been waited for: after that the number may be another process's.
    fn tell(&self, signal: Signal) {
        let Some(pid) = self.pid.filter(|_| self.process.id().is_some()) else { return };
        // It may have ended this very moment.
        let _ = match self.leads {
            true => kill_process_group(pid, signal),
            false => kill_process(pid, signal),
        };
    }
}

/// As a shell gives it.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or(1);
    u8::try_from(code & 0xff).unwrap_or(1)
}
