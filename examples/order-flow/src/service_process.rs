//! Each service as a child process that can be killed.

use std::process::{Child, Command, Stdio};

/// A service process, killed when dropped.
pub(crate) struct ServiceProcess {
    arguments: Vec<String>,
    child: Option<Child>,
}

impl ServiceProcess {
    pub(crate) fn start(arguments: &[&str]) -> anyhow::Result<Self> {
        let arguments = arguments.iter().map(|a| (*a).to_owned()).collect();
        let mut process = Self { arguments, child: None };
        process.restart()?;
        Ok(process)
    }

    /// Sends `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.kill();
        let mut command = Command::new(std::env::current_exe()?);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(command.stderr(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Restarts the process if it has exited by itself, as a supervisor would.
    pub(crate) fn restart_if_ended(&mut self) -> anyhow::Result<()> {
        let ended = match &mut self.child {
            Some(child) => child.try_wait()?.is_some(),
            None => false,
        };
        if ended { self.restart() } else { Ok(()) }
    }
}

impl Drop for ServiceProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
