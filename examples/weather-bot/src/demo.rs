//! A conversation without an account or a network: the bot itself, a simulated LINE and a simulated
//! weather service with fixed data, all in this process on loopback.

use std::time::Duration;

use anyhow::{Context, ensure};
use example_common::demo::{DemoLine, SECRET, STEP_TIMEOUT, TOKEN, USER, print};
use hapax::lock::Locks;
use hapax_line::simulator::events;
use hapax_line::{BUSY_TEXT, ChannelSecrets, LineClient, LockRules};
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::settings::{RULES, WeatherBotSettings};
use crate::simulated_weather::{SimulatedWeather, WeatherMode};
use crate::weather::WeatherService;
use crate::{app, texts};

/// Plays the conversation, and fails on an unexpected answer.
pub(crate) async fn run() -> anyhow::Result<()> {
    print(
        "The bot, with a simulated LINE and a simulated weather service: fixed data, no network.",
    )?;
    let (line, listener) = DemoLine::start().await?;
    let weather = SimulatedWeather::start().await?;
    let settings = WeatherBotSettings {
        listen: String::new(),
        store: "memory:".into(),
        store_timeout: STEP_TIMEOUT,
        database: line.database(),
        database_timeout: STEP_TIMEOUT,
        rules: LockRules::parse(RULES)?.with_default_ttl(STEP_TIMEOUT),
        secrets: ChannelSecrets::new(SECRET)?,
        line: LineClient::new(&line.api.base(), TOKEN)?.timeout(STEP_TIMEOUT),
        weather: WeatherService::new(&weather.base(), &weather.base(), STEP_TIMEOUT)?,
    };
    let server = app::open(settings, None).await?;
    let locks = Locks::new(server.store.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let bot = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
    Demo { line, locks, weather }.play().await?;
    drop(stop);
    bot.await?
}

struct Demo {
    line: DemoLine,
    locks: Locks,
    weather: SimulatedWeather,
}

impl Demo {
    async fn play(&self) -> anyhow::Result<()> {
        self.ask("（加入好友）", events::follow(USER), 0).await?;
        self.ask("台北", events::text(USER, "台北"), 1).await?;
        self.ask("亞特蘭提斯", events::text(USER, "亞特蘭提斯"), 0).await?;
        self.ask("設定住家 台北", events::text(USER, "設定住家 台北"), 0).await?;
        self.ask("設定公司 新竹", events::text(USER, "設定公司 新竹"), 0).await?;
        let map = events::location(USER, "花蓮車站", 23.9933, 121.6011);
        self.ask("（位置）花蓮車站", map, 1).await?;
        self.double_tap().await?;
        self.redelivery().await?;
        self.ask("［最近查詢］", events::postback(USER, "action=recent_queries"), 0).await?;
        self.ask("［設定］", events::postback(USER, "action=settings"), 0).await?;
        self.service_down().await?;
        let (said, broken) = (self.line.api.accepted_calls().len(), self.line.api.violations());
        ensure!(broken.is_empty(), "LINE would have refused: {broken:?}");
        let (lookups, found) = (self.weather.lookups(), self.weather.searches());
        print(&format!(
            "\n{lookups} lookups and {found} searches for places in all; {said} calls to LINE, \
             every reply token used once."
        ))?;
        Ok(())
    }

    /// Holds the forecast until the second tap is answered, so that the taps overlap without a
    /// sleep.
    async fn double_tap(&self) -> anyhow::Result<()> {
        print("\nA double tap in the rich menu, two webhooks at once:")?;
        let before = self.weather.lookups();
        self.weather.set(WeatherMode::Holding);
        let tap = || events::postback(USER, "action=weather&type=home");
        print("小明 ▶ ［住家］\n小明 ▶ ［住家］")?;
        self.wait_for_lock().await?;
        tokio::try_join!(self.line.send(tap()), self.line.send(tap()))?;
        ensure!(self.answer().await? == [BUSY_TEXT], "one of two taps is told to wait");
        self.weather.set(WeatherMode::Well);
        self.answer().await?;
        self.check_lookups(before, 1)
    }

    async fn redelivery(&self) -> anyhow::Result<()> {
        print("\nLINE delivers a tap twice, because it did not hear the first answer:")?;
        let tap = events::postback(USER, "action=weather&type=office");
        self.ask("［公司］", tap.clone(), 1).await?;
        let before = self.weather.lookups();
        self.send("［公司］ again", events::redelivered(&tap)).await?;
        print("     (no answer)")?;
        self.check_lookups(before, 0)
    }

    async fn service_down(&self) -> anyhow::Result<()> {
        print("\nThe weather service is down:")?;
        self.weather.set(WeatherMode::Status(503));
        let before = self.weather.lookups();
        self.send("［住家］", events::postback(USER, "action=weather&type=home")).await?;
        ensure!(self.answer().await? == [texts::WEATHER_AWAY], "a friendly text");
        self.weather.set(WeatherMode::Well);
        self.check_lookups(before, 1)
    }

    /// Sends an event, awaits the answer, and checks the number of lookups.
    async fn ask(&self, label: &str, event: Value, lookups: usize) -> anyhow::Result<()> {
        let before = self.weather.lookups();
        self.send(label, event).await?;
        self.answer().await?;
        self.check_lookups(before, lookups)
    }

    async fn send(&self, label: &str, event: Value) -> anyhow::Result<()> {
        print(&format!("小明 ▶ {label}"))?;
        self.wait_for_lock().await?;
        self.line.send(event).await
    }

    async fn answer(&self) -> anyhow::Result<Vec<String>> {
        self.line.answer(" bot ◀ ", 7).await
    }

    /// Waits until the lock is free: it is released after the answer, and a program could send
    /// sooner.
    async fn wait_for_lock(&self) -> anyhow::Result<()> {
        let name = format!("processing:user:{USER}");
        let free = async {
            while self.locks.look(&name).await?.held {
                sleep(Duration::from_millis(5)).await;
            }
            anyhow::Ok(())
        };
        timeout(STEP_TIMEOUT, free).await.context("the lock is never released")?
    }

    fn check_lookups(&self, before: usize, expected: usize) -> anyhow::Result<()> {
        let lookups = self.weather.lookups() - before;
        print(&format!("     ({lookups} {})", if lookups == 1 { "lookup" } else { "lookups" }))?;
        ensure!(lookups == expected, "that should have cost {expected}");
        Ok(())
    }
}
