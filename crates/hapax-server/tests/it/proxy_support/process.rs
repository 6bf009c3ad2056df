//! The `hapax proxy` binary.

use std::path::Path;
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal};

use crate::support::{HapaxProcess, hapax};

/// A running `hapax proxy`, killed when dropped.
pub(crate) struct Proxy {
    process: HapaxProcess,
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    /// The address of `--admin`, where that was given.
    pub(crate) admin: Option<String>,
}

fn before<'a>(upstream: &'a str, store: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["--upstream", upstream, "--store", store, "--listen", "127.0.0.1:0"], flags].concat()
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, on a free port, with further flags.
    pub(crate) fn start(upstream: &str, store: &str, flags: &[&str]) -> Self {
        Self::spawn(command(&before(upstream, store, flags)))
    }

    /// Starts a proxy that aborts at a failpoint: `granted:2`, the second time it is passed.
    pub(crate) fn doomed(upstream: &str, store: &str, flags: &[&str], failpoint: &str) -> Self {
        let mut command = command(&before(upstream, store, flags));
        command.env("HAPAX_FAILPOINT", failpoint);
        Self::spawn(command)
    }

    /// Starts a proxy with these flags alone.
    pub(crate) fn run(flags: &[&str]) -> Self {
        Self::spawn(command(flags))
    }

    fn spawn(mut command: Command) -> Self {
        let process = HapaxProcess::start(&mut command);
        Self { address: process.address(), admin: process.admin_address(), process }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn admin_url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin.as_ref().expect("--admin was given"))
    }

    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// `SIGKILL`.
    pub(crate) fn kill(mut self) {
        self.process.kill();
    }

    /// `SIGTERM`.
    pub(crate) fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Waits for the process to end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        self.process.wait().0
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.process.log()
    }
}

/// `hapax proxy` with these flags, without the developer's own settings.
pub(crate) fn command(flags: &[&str]) -> Command {
    let mut command = hapax();
    command
        .arg("proxy")
        .args(flags)
        // A busy machine must not fail a store call; tests of the timeout set a flag.
        .env("HAPAX_STORE_TIMEOUT", "20s")
        // Away from any hapax.toml.
        .current_dir(Path::new("/"));
    command
}
