//! The real program between LINE's simulator and its databases, and a search of its output for
//! personal data.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use bookkeeping_bot::ledger::{Ledger, Row};
use example_common::bot_process::{BotProcess, TIMEOUT, send};
use example_common::demo::{SECRET, TOKEN};
use hapax::StoreConfig;
use hapax::queue::{DeadQuery, QueueName};
use hapax_line::simulator::{AcceptedCall, SimulatedApi, events};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const USER: &str = "Uf00d0000000000000000000000000003";
/// Strings that no log, metric or error body may contain.
const PERSONAL: [&str; 8] =
    ["Uf00d", "🥚", SECRET, TOKEN, "replyToken", "k3y-of-the-model", "午餐", "last_transaction"];

/// The bot's process, and the simulated LINE around it.
pub(crate) struct World {
    pub(crate) api: SimulatedApi,
    pub(crate) store: String,
    pub(crate) database: String,
    variables: Vec<(String, String)>,
    flags: Vec<String>,
    folder: TempDir,
    bot: Option<BotProcess>,
}

impl World {
    /// Prepares a bot without starting it. Store and ledger default to SQLite files.
    pub(crate) async fn new(store: Option<&str>, database: Option<&str>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name: &str| format!("sqlite:{}", folder.path().join(name).display());
        Self {
            api: SimulatedApi::start("127.0.0.1:0", TOKEN).await.expect("a port"),
            store: store.map_or_else(|| file("hapax.db"), str::to_owned),
            database: database.map_or_else(|| file("ledger.db"), str::to_owned),
            variables: Vec::new(),
            // Long limits, so that a busy machine does not look like a store that is down.
            flags: ["--store-timeout-ms", "30000", "--store-budget-ms", "30000"]
                .map(str::to_owned)
                .into(),
            folder,
            bot: None,
        }
    }

    /// A running bot with this store.
    pub(crate) async fn started(store: Option<&str>) -> Self {
        let mut world = Self::new(store, None).await;
        world.start();
        world
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Limits for one store call and for a webhook, in milliseconds.
    pub(crate) fn store_limits(mut self, call_ms: &str, webhook_ms: &str) -> Self {
        self.flags.clear();
        self.flag("--store-timeout-ms", call_ms).flag("--store-budget-ms", webhook_ms)
    }

    pub(crate) fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.extend([flag.into(), value.into()]);
        self
    }

    /// Starts the bot, after killing the running one.
    pub(crate) fn start(&mut self) {
        self.start_with(&[]);
    }

    /// Starts a bot that dies when a message reaches this crash point.
    pub(crate) fn start_dying_at(&mut self, point: &str) {
        self.start_with(&[("BOOKKEEPING_DIE_AT", point)]);
    }

    fn start_with(&mut self, variables: &[(&str, &str)]) {
        self.kill();
        let mut command = Command::new(env!("CARGO_BIN_EXE_bookkeeping-bot"));
        for name in ["OPENAI_API_BASE", "OPENAI_API_KEY", "LAST_TRANSACTION_TTL"] {
            command.env_remove(name);
        }
        // The original bot's variable for the store's URL.
        command.env("REDIS_URL", &self.store).args(["--database", &self.database]);
        command.args(&self.flags).envs(self.variables.clone()).envs(variables.iter().copied());
        self.bot = Some(BotProcess::start(&mut command, &self.api, &self.log()));
    }

    /// Sends the event to a bot that dies at this crash point, and redelivers it to the next one, as
    /// LINE does if it received no 200. The first bot may die before or after it answers 200.
    pub(crate) async fn die_at_then_redeliver(&mut self, point: &str, event: &Value) {
        self.start_dying_at(point);
        let _ = self.deliver(std::slice::from_ref(event)).await;
        self.ended();
        self.start();
        assert_eq!(self.deliver(&[events::redelivered(event)]).await, Some(200));
    }

    /// Kills the bot with `SIGKILL`.
    pub(crate) fn kill(&mut self) {
        self.bot = None;
    }

    /// Waits until the bot has exited by itself.
    pub(crate) fn ended(&mut self) {
        self.bot.take().expect("it runs").ended();
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("log")
    }

    /// The bot's output so far.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    fn bot(&self) -> &BotProcess {
        self.bot.as_ref().expect("it runs")
    }

    /// Sends one webhook; returns its status, or `None` if there was no answer.
    pub(crate) async fn deliver(&self, events: &[Value]) -> Option<u16> {
        send(&self.bot().sender, events).await.ok().map(|delivered| delivered.status)
    }

    /// Sends a message, and returns the bot's answer.
    pub(crate) async fn say(&self, text: &str) -> Vec<String> {
        let event = events::text(USER, text);
        assert_eq!(self.deliver(std::slice::from_ref(&event)).await, Some(200));
        self.heard(&event).await.texts()
    }

    /// Waits for the reply to an event.
    pub(crate) async fn heard(&self, event: &Value) -> AcceptedCall {
        let since = Instant::now();
        loop {
            let said = self.api.accepted_calls();
            let mut replies = said.iter();
            let token = event["replyToken"].as_str();
            if let Some(said) = replies.find(|said| said.reply_token.as_deref() == token) {
                return said.clone();
            }
            assert!(since.elapsed() < TIMEOUT, "no answer\n{}", self.output());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Status and body of a `GET` on the bot's own listener.
    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        self.bot().get(path)
    }

    /// The rows of the ledger.
    pub(crate) async fn rows(&self) -> Vec<Row> {
        let since = Instant::now();
        loop {
            // The ledger's limits are a few seconds, and a busy machine may take longer.
            let error = match Ledger::open(&self.database).await {
                Ok(ledger) => match ledger.rows().await {
                    Ok(rows) => return rows,
                    Err(error) => error.into(),
                },
                Err(error) => error,
            };
            assert!(since.elapsed() < TIMEOUT, "no ledger: {error:#}");
        }
    }

    /// Item and amount of every row as booked.
    pub(crate) async fn booked(&self) -> Vec<(String, f64)> {
        self.rows().await.into_iter().map(|row| (row.entry.item, row.entry.amount)).collect()
    }

    /// Waits until every event is handled; requeues dead letters, as an operator would.
    pub(crate) async fn drained(&self) {
        let patient =
            StoreConfig::default().timeout(TIMEOUT).redis_verbatim(["user:*:last_transaction"]);
        let store = hapax::open(&self.store, &patient).expect("a store");
        let line = QueueName::new("bookkeeping-bot").expect("a name");
        let since = Instant::now();
        loop {
            if let Ok(depth) = store.depth(&line, None).await {
                if depth.waiting == 0 && depth.in_flight == 0 && depth.dead == 0 {
                    return;
                }
                for dead in store.dead(&line, None, &DeadQuery::new(100)).await.unwrap_or_default()
                {
                    let _ = store.requeue(&line, None, dead.id).await;
                }
            }
            assert!(since.elapsed() < TIMEOUT, "events are left\n{}", self.output());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Ends the test: asserts that LINE's rules were kept and that the output has no personal data.
    pub(crate) fn in_order(mut self) {
        assert_eq!(self.api.violations(), Vec::<String>::new());
        let mut written = self.output();
        if self.bot.is_some() {
            for path in ["/metrics", "/healthz", "/readyz", "/line/webhook", "/no/such/page"] {
                written += &self.get(path).1;
            }
        }
        assert!(written.len() > 50, "the search has something to search");
        hapax_testkit::keep_log("bookkeeping-bot", &written);
        for personal in PERSONAL {
            assert!(!written.contains(personal), "{personal} in\n{written}");
        }
        self.kill();
    }
}
