//! A `hapax` that the demo starts beside itself; it dies with the demo.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

use crate::leased_run::child::bound_command;

/// How long a process may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct StartedProcess {
    name: String,
    /// The URL on which it listens; empty for one that does not.
    pub(super) address: String,
    process: Child,
    /// Keeps the pipe open, into which the process may still write.
    _output: Lines<BufReader<ChildStdout>>,
}

impl StartedProcess {
    /// Starts `hapax` with these arguments, and waits until it has said where it listens.
    pub(super) async fn start(
        arguments: &[&str],
        environment: &[(&str, String)],
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let name = arguments.first().copied().unwrap_or_default().to_owned();
        let program = std::env::current_exe().context("hapax does not find itself")?;
        let command: Vec<OsString> =
            std::iter::once(program.into()).chain(arguments.iter().map(OsString::from)).collect();
        let mut start = tokio::process::Command::from(bound_command(&command));
        start.args(["--log-level", "error"]).current_dir(folder).kill_on_drop(true);
        start.envs(environment.iter().map(|(name, value)| (name, value)));
        let mut process = start
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("`hapax {name}` cannot be started"))?;
        let stdout = process.stdout.take().context("a started process has an output")?;
        let mut output = BufReader::new(stdout).lines();
        let first = tokio::time::timeout(START_TIMEOUT, output.next_line()).await;
        let Ok(Ok(Some(first))) = first else {
            bail!("`hapax {name}` did not start; what it printed is above");
        };
        let address = first.split("listens on ").nth(1).unwrap_or_default().trim().to_owned();
        Ok(Self { name, address, process, _output: output })
    }

    /// Waits for its end, which is a failure as long as the demo runs. Returns its name.
    pub(super) async fn ended(&mut self) -> String {
        let _ = self.process.wait().await;
        self.name.clone()
    }
}
