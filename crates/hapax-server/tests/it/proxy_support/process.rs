//! The `hapax proxy` binary.

use std::process::Command;

use rustix::process::{Pid, Signal};

use crate::proxy_support::client::{Reply, keyed, send};
use crate::support::{HapaxProcess, hapax};

/// A running `hapax proxy`, killed when dropped.
pub(crate) struct Proxy {
    process: HapaxProcess,
    pub(crate) address: String,
    /// The address of `--admin`, where that was given.
    pub(crate) admin: Option<String>,
}

impl Proxy {
    /// Starts a proxy in front of `upstream`, on a free port, with further flags.
    pub(crate) fn start(upstream: &str, store: &str, flags: &[&str]) -> Self {
        Self::spawn(command(&["--upstream", upstream, "--store", store]).args(flags))
    }

    /// Starts a proxy that aborts at a failpoint: `granted:2`, the second time it is passed.
    pub(crate) fn doomed(upstream: &str, store: &str, flags: &[&str], failpoint: &str) -> Self {
        let mut command = command(&["--upstream", upstream, "--store", store]);
        Self::spawn(command.args(flags).env("HAPAX_FAILPOINT", failpoint))
    }

    /// Starts a proxy with these flags alone.
    pub(crate) fn run(flags: &[&str]) -> Self {
        Self::spawn(&mut command(flags))
    }

    fn spawn(command: &mut Command) -> Self {
        let process = HapaxProcess::start(command.args(["--listen", "127.0.0.1:0"]));
        Self { address: process.address(), admin: process.admin_address(), process }
    }

    pub(crate) async fn order(&self, key: &str) -> Reply {
        send(keyed(self.url("/orders"), key), "a").await
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

    pub(crate) fn terminate(&self) {
        self.process.signal(Signal::TERM);
    }

    /// Waits for its end, which must be a success.
    pub(crate) fn ended(&mut self) {
        self.process.ended();
    }

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
        .current_dir("/");
    command
}
