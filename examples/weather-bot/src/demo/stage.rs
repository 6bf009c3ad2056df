//! The bot between a simulated LINE and a simulated weather service.

use std::time::Duration;

use anyhow::{Context, ensure};
use hapax::lock::Locks;
use hapax_line::simulator::{SimulatedApi, WebhookSender};
use hapax_line::{ChannelSecrets, LineClient, LockRules};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::note;
use crate::app::App;
use crate::settings::{RULES, WeatherBotSettings};
use crate::simulated_weather::{Mood, SimulatedWeather};
use crate::weather::WeatherService;

/// The simulated user.
pub(super) const USER: &str = "Uf00d0000000000000000000000000001";
const BOT: &str = "Uf00d000000000000000000000000b07a";

/// Timeout for each step; the demo fails if a step takes longer.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Stage {
    line: SimulatedApi,
    locks: Locks,
    sender: WebhookSender,
    weather: SimulatedWeather,
    bot: JoinHandle<anyhow::Result<()>>,
    stop: oneshot::Sender<()>,
    _folder: TempDir,
}

impl Stage {
    pub(super) async fn set() -> anyhow::Result<Self> {
        let (secrets, token) = (ChannelSecrets::new("simulated-secret")?, "simulated-token");
        let line = SimulatedApi::start("127.0.0.1:0", token).await?;
        let weather = SimulatedWeather::start().await?;
        let folder = tempfile::tempdir()?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/line/webhook", listener.local_addr()?);
        let app = App::open(WeatherBotSettings {
            listen: String::new(),
            store: "memory:".into(),
            store_limit: PATIENCE,
            database: format!("sqlite:{}/weather.db", folder.path().display()),
            database_limit: PATIENCE,
            rules: LockRules::parse(RULES)?.with_default_ttl(PATIENCE),
            secrets: secrets.clone(),
            line: LineClient::new(&line.base(), token)?.timeout(PATIENCE),
            weather: WeatherService::new(&weather.base(), &weather.base(), PATIENCE)?,
        });
        let app = app.await?;
        let locks = Locks::new(app.store.clone());
        let (stop, stopped) = oneshot::channel();
        let bot = tokio::spawn(app.serve(listener, None, async move { drop(stopped.await) }));
        let sender = WebhookSender::new(&url, &secrets, BOT)?;
        Ok(Self { line, locks, sender, weather, bot, stop, _folder: folder })
    }

    /// Sends an event, awaits the answer, and checks the number of lookups.
    pub(super) async fn plays(&self, what: &str, event: Value, cost: usize) -> anyhow::Result<()> {
        let before = self.lookups();
        self.send(what, event).await?;
        self.answer().await?;
        self.costs(before, cost)
    }

    pub(super) async fn send(&self, what: &str, event: Value) -> anyhow::Result<()> {
        note(&format!("小明 ▶ {what}"))?;
        self.idle().await?;
        self.deliver(event).await
    }

    async fn deliver(&self, event: Value) -> anyhow::Result<()> {
        let delivered = self.sender.send(&[event]).await?;
        ensure!(delivered.status == 200, "the bot answers {}", delivered.status);
        Ok(())
    }

    pub(super) async fn send_both(&self, what: &str, a: Value, b: Value) -> anyhow::Result<()> {
        note(&format!("小明 ▶ {what}\n小明 ▶ {what}"))?;
        self.idle().await?;
        tokio::try_join!(self.deliver(a), self.deliver(b))?;
        Ok(())
    }

    /// Waits until the lock is free: it is released after the answer, and a program could send
    /// sooner.
    async fn idle(&self) -> anyhow::Result<()> {
        let name = format!("processing:user:{USER}");
        let free = async {
            while self.locks.look(&name).await?.held {
                sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        timeout(PATIENCE, free).await.context("the lock is never released")?
    }

    /// The bot's next answer.
    pub(super) async fn answer(&self) -> anyhow::Result<Vec<String>> {
        loop {
            let said = self.line.next(PATIENCE).await.context("the bot says nothing")?;
            let texts = said.texts();
            // Skip the loading animation, which has no text.
            if !texts.is_empty() {
                for text in &texts {
                    note(&format!(" bot ◀ {}", text.replace('\n', "\n       ")))?;
                }
                return Ok(texts);
            }
        }
    }

    pub(super) fn lookups(&self) -> usize {
        self.weather.lookups()
    }

    pub(super) fn weather(&self, mood: Mood) {
        self.weather.set(mood);
    }

    pub(super) fn costs(&self, before: usize, expected: usize) -> anyhow::Result<()> {
        let cost = self.lookups() - before;
        note(&format!("     ({cost} {})", if cost == 1 { "lookup" } else { "lookups" }))?;
        ensure!(cost == expected, "that should have cost {expected}");
        Ok(())
    }

    /// Stops the bot.
    pub(super) async fn strike(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.bot.await??;
        let (said, lookups) = (self.line.accepted_calls().len(), self.weather.lookups());
        let (found, broken) = (self.weather.searches(), self.line.violations());
        ensure!(broken.is_empty(), "LINE would have refused: {broken:?}");
        note(&format!(
            "\n{lookups} lookups and {found} searches for places in all; {said} calls to LINE, \
             every reply token used once."
        ))?;
        Ok(())
    }
}
