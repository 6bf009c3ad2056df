//! The command that kills the service and starts it again.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use super::target::Target;

/// How long the command may take, and how long the service may take to answer after it.
const LONGEST: Duration = Duration::from_secs(120);

pub(super) struct Restart {
    command: String,
}

impl Restart {
    pub(super) fn new(command: String) -> Self {
        Self { command }
    }

    /// Runs the command, and waits until the service answers again.
    pub(super) async fn run(&self, target: &Target) -> anyhow::Result<()> {
        let what = || format!("--restart {:?}", self.command);
        let mut shell = Command::new("sh");
        // The service that it starts may keep these open, so nothing reads them to their end.
        shell.args(["-c", &self.command]).stdin(Stdio::null()).stdout(Stdio::null());
        let status = timeout(LONGEST, shell.stderr(Stdio::inherit()).kill_on_drop(true).status());
        let status = status.await.with_context(|| format!("{} did not end", what()))?;
        let status = status.with_context(what)?;
        ensure!(status.success(), "{} ended with {status}", what());
        let deadline = Instant::now() + LONGEST;
        while let Err(error) = target.is_up().await {
            ensure!(Instant::now() < deadline, "after {}: {error:#}", what());
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}
