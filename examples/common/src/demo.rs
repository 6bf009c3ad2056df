//! A simulated LINE on loopback, with which a bot talks in its demo.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context, ensure};
use hapax_line::ChannelSecrets;
use hapax_line::simulator::{SimulatedApi, WebhookSender};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// The secret of the simulated channel.
pub const SECRET: &str = "simulated-secret";
/// The access token of the simulated channel.
pub const TOKEN: &str = "simulated-token";
/// The user who talks to the bot.
pub const USER: &str = "Uf00d0000000000000000000000000001";
pub(crate) const BOT: &str = "Uf00d000000000000000000000000b07a";

/// Timeout for each step; the demo fails if a step takes longer.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// LINE's side of a demo.
pub struct DemoLine {
    /// LINE's API, as the bot sees it.
    pub api: SimulatedApi,
    sender: WebhookSender,
    folder: TempDir,
}

impl DemoLine {
    /// Starts the simulated LINE; the bot must serve on the listener.
    pub async fn start() -> anyhow::Result<(Self, TcpListener)> {
        let api = SimulatedApi::start("127.0.0.1:0", TOKEN).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/line/webhook", listener.local_addr()?);
        let sender = WebhookSender::new(&url, &ChannelSecrets::new(SECRET)?, BOT)?;
        Ok((Self { api, sender, folder: tempfile::tempdir()? }, listener))
    }

    /// URL of a temporary database for the bot.
    pub fn database(&self) -> String {
        format!("sqlite:{}/demo.db", self.folder.path().display())
    }

    /// Sends an event in a webhook.
    pub async fn send(&self, event: Value) -> anyhow::Result<()> {
        let delivered = self.sender.send(&[event]).await?;
        ensure!(delivered.status == 200, "the webhook was answered with {}", delivered.status);
        Ok(())
    }

    /// Prints the texts of the bot's next answer, with further lines indented, and returns them.
    pub async fn answer(&self, speaker: &str, indent: usize) -> anyhow::Result<Vec<String>> {
        let line_break = format!("\n{}", " ".repeat(indent));
        loop {
            let said = self.api.next(STEP_TIMEOUT).await.context("the bot says nothing")?;
            let texts = said.texts();
            // Skip the loading animation, which has no text.
            if !texts.is_empty() {
                for text in &texts {
                    print(&format!("{speaker}{}", text.replace('\n', &line_break)))?;
                }
                return Ok(texts);
            }
        }
    }
}

/// Writes a line to standard output.
pub fn print(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
