//! The bot as a child process, with its servers and simulated services.

use std::process::Command;
use std::time::Duration;

use example_common::bot_process::{BotProcess, TIMEOUT, send};
use example_common::demo::{SECRET, TOKEN};
use example_weather_bot::simulated_weather::SimulatedWeather;
use hapax_line::simulator::{AcceptedCall, ApiEndpoint, SimulatedApi, events};
use hapax_testkit::{Redis, TcpProxy, keep_log};
use serde_json::Value;
use tempfile::TempDir;
use tokio::time::sleep;

pub(crate) const USER: &str = "Uf00d0000000000000000000000000001";
/// The answer to an event of a user whose lock is held.
pub(crate) const BUSY: &str = "⏳ 正在為您查詢天氣，請稍候...";

/// A tap on the button for the weather at home.
pub(crate) fn home() -> Value {
    events::postback(USER, "action=weather&type=home")
}

/// Long limits, so that a busy machine does not look like a store or a service that is down.
const UNHURRIED: &[(&str, &str)] = &[
    ("STORE_TIMEOUT_MS", "60000"),
    ("DATABASE_TIMEOUT_MS", "60000"),
    ("WEATHER_TIMEOUT_MS", "60000"),
    ("PROCESSING_LOCK_TIMEOUT_SECONDS", "600"),
];

/// Deviations from the default test setup.
#[derive(Default)]
pub(crate) struct Plan<'a> {
    /// URL of the users' database; by default SQLite in the test's folder.
    pub(crate) database: Option<&'a str>,
    pub(crate) flags: &'a [&'a str],
    pub(crate) environment: &'a [(&'a str, &'a str)],
    /// Use the program's default limits.
    pub(crate) hurried: bool,
    /// Connect to Redis through [`World::wire`].
    pub(crate) wired: bool,
}

pub(crate) struct World {
    pub(crate) line: SimulatedApi,
    pub(crate) weather: SimulatedWeather,
    pub(crate) redis: Redis,
    pub(crate) wire: TcpProxy,
    pub(crate) bot: BotProcess,
    _folder: TempDir,
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::with(Plan::default()).await
    }

    pub(crate) async fn with(plan: Plan<'_>) -> Self {
        let redis = Redis::start();
        let wire = TcpProxy::to(redis.port());
        let store = match plan.wired {
            true => format!("redis://127.0.0.1:{}/0", wire.port()),
            false => redis.url(),
        };
        let line = SimulatedApi::start("127.0.0.1:0", TOKEN).await.expect("a simulated LINE");
        let weather = SimulatedWeather::start().await.expect("a simulated service");
        let folder = tempfile::tempdir().expect("a folder");
        let database = format!("sqlite:{}/weather.db", folder.path().display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_weather-bot"));
        command
            .args(["--database", plan.database.unwrap_or(&database)])
            .args(plan.flags)
            .env("REDIS_URL", store)
            .env("WEATHER_API_BASE", weather.base());
        if !plan.hurried {
            command.envs(UNHURRIED.iter().copied());
        }
        command.envs(plan.environment.iter().copied());
        let bot = BotProcess::start(&mut command, &line, &folder.path().join("log"));
        Self { line, weather, redis, wire, bot, _folder: folder }
    }

    /// Sends a webhook with these events.
    pub(crate) async fn send(&self, events: &[Value]) {
        let delivered = send(&self.bot.sender, events).await.expect("an answer");
        assert_eq!(delivered.status, 200);
    }

    /// The bot's next call to LINE, except loading animations.
    pub(crate) async fn next(&self) -> AcceptedCall {
        loop {
            let said = self.line.next(TIMEOUT).await;
            let said = said.unwrap_or_else(|| panic!("the bot says nothing\n{}", self.log()));
            if said.endpoint != ApiEndpoint::Loading {
                return said;
            }
        }
    }

    /// The text of the bot's next answer.
    pub(crate) async fn answer(&self) -> String {
        let texts = self.next().await.texts();
        assert_eq!(texts.len(), 1, "one message");
        texts.into_iter().next().expect("a text")
    }

    /// Sends one event while the user holds no lock, and returns the answer.
    pub(crate) async fn ask(&self, event: Value) -> String {
        self.idle().await;
        self.send(&[event]).await;
        self.answer().await
    }

    /// Waits until the lock is free: it is released after the answer, and a test could send sooner.
    pub(crate) async fn idle(&self) {
        self.until("no lock is held", async || {
            self.redis.cli(&["KEYS", "processing:user:*"]).is_empty()
        })
        .await;
    }

    /// Waits until one event of this kind has been handled.
    pub(crate) async fn handled(&self, kind: &str) {
        let done = format!(r#"hapax_line_handled_total{{event_type="{kind}",result="done"}}"#);
        self.until("it is handled", async || self.metric(&done).await == 1).await;
    }

    /// Polls until the condition holds.
    pub(crate) async fn until(&self, what: &str, probe: impl AsyncFn() -> bool) {
        let since = tokio::time::Instant::now();
        while !probe().await {
            assert!(since.elapsed() < TIMEOUT, "waited in vain: {what}\n{}", self.log());
            sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn has_shown_loading(&self) -> bool {
        self.line.accepted_calls().iter().any(|said| said.endpoint == ApiEndpoint::Loading)
    }

    /// All texts that the bot has sent so far.
    pub(crate) fn said(&self) -> Vec<String> {
        self.line.accepted_calls().iter().flat_map(AcceptedCall::texts).collect()
    }

    /// The value of a metric; 0 if it is not exported yet.
    pub(crate) async fn metric(&self, name: &str) -> usize {
        let (status, text) = self.bot.get("/metrics");
        assert_eq!(status, 200);
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map_or(0, |value| value.trim().parse().expect("a number"))
    }

    pub(crate) fn log(&self) -> String {
        self.bot.output()
    }

    /// Stops the bot, and checks what must hold after every test.
    pub(crate) async fn end(self) {
        let (_, metrics) = self.bot.get("/metrics");
        self.bot.terminate();
        assert!(self.bot.ended().success(), "{}", self.log());
        assert_eq!(self.line.violations(), Vec::<String>::new());
        let written = self.log() + &metrics;
        assert!(!written.contains("panicked"), "{written}");
        keep_log("weather-bot", &written);
        let tokens = self.line.accepted_calls().into_iter().filter_map(|said| said.reply_token);
        let private = ["Uf00d", "🥚", "台北", "新竹", SECRET, TOKEN, "121.5264"].map(str::to_owned);
        for private in tokens.chain(private) {
            assert!(!written.contains(&private), "{private} in\n{written}");
        }
    }
}
