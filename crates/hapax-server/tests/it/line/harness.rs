//! LINE's side, a bot, and gateways between them.

use std::time::Duration;

use hapax_line::simulator::{SimulatedApi, events};
use hapax_line::{ChannelSecrets, LineClient};
use hapax_testkit::{Redis, wait_for};
use serde_json::Value;
use tempfile::TempDir;

use crate::line::bot::Bot;
use crate::line::gateway::{Gateway, Start};
use crate::line::leaks::Tokens;

pub(crate) use crate::support::PATIENCE;
/// How long LINE waits for a response.
pub(crate) const LIMIT: Duration = Duration::from_secs(2);

// Ids, texts and secrets carry a mark that `leaks` finds.
pub(crate) const SECRET: &str = "secret-food-of-the-channel";
pub(crate) const ACCESS_TOKEN: &str = "token-food-of-the-channel";
/// The bot's own user id.
pub(crate) const DESTINATION: &str = "Uf00db07";
/// The busy text, letter for letter.
pub(crate) const BUSY: &str = "⏳ 正在為您查詢天氣，請稍候...";

/// LINE on one side, a bot on the other, and a store.
pub(crate) struct Scene {
    pub(crate) line: SimulatedApi,
    pub(crate) bot: Bot,
    pub(crate) store: String,
    pub(crate) tokens: Tokens,
    /// The folder of the store's file.
    folder: Option<TempDir>,
}

impl Scene {
    /// A scene on the store at this URL.
    pub(crate) async fn on(store: &str) -> Self {
        let line =
            SimulatedApi::start("127.0.0.1:0", ACCESS_TOKEN).await.expect("LINE's side starts");
        let client = LineClient::new(&line.base(), ACCESS_TOKEN).expect("a base").timeout(PATIENCE);
        let bot = Bot::start(secrets(), client).await;
        Self { line, bot, store: store.to_owned(), tokens: Tokens::default(), folder: None }
    }

    pub(crate) async fn on_redis(redis: &Redis) -> Self {
        Self::on(&redis.url()).await
    }

    /// A scene on a file of its own.
    pub(crate) async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let store = format!("sqlite:{}", folder.path().join("line.db").display());
        let mut scene = Self::on(&store).await;
        scene.folder = Some(folder);
        scene
    }

    /// The command line of a gateway.
    pub(crate) fn gateway(&self) -> Start<'_> {
        Start::new(self)
    }

    /// Starts a gateway without further settings.
    pub(crate) fn start(&self) -> Gateway {
        self.gateway().start()
    }

    /// The reply tokens of the busy texts so far.
    pub(crate) fn told(&self) -> Vec<String> {
        let busy = self.line.accepted_calls().into_iter().filter(|said| said.texts() == [BUSY]);
        busy.map(|said| said.reply_token.expect("through the reply API")).collect()
    }

    /// How often the sender of this event was told to wait.
    pub(crate) fn times_told(&self, event: &Value) -> usize {
        let token = event["replyToken"].as_str().unwrap_or_default();
        self.told().iter().filter(|told| *told == token).count()
    }

    /// Waits until this number of senders have been told to wait.
    pub(crate) fn told_in_all(&self, times: usize) {
        let what = format!("{times} are told to wait");
        wait_for(&what, PATIENCE, || (self.told().len() >= times).then_some(()));
        assert_eq!(self.told().len(), times);
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let violations = self.line.violations();
            assert!(violations.is_empty(), "LINE would have refused: {violations:?}");
        }
    }
}

pub(crate) fn secrets() -> ChannelSecrets {
    ChannelSecrets::new(SECRET).expect("a secret")
}

/// A user id.
pub(crate) fn user(number: u32) -> String {
    format!("Uf00d{number:028x}")
}

/// A text message of a user.
pub(crate) fn text(user: &str) -> Value {
    events::text(user, "臺北的天氣🥚")
}

/// The same event as LINE redelivers it.
pub(crate) fn again(event: &Value) -> Value {
    events::redelivered(event)
}

pub(crate) fn lock_key(user: &str) -> String {
    format!("processing:user:{user}")
}

/// The remaining TTL of a key in ms; negative without a key or a TTL.
pub(crate) fn pttl(redis: &Redis, key: &str) -> i64 {
    redis.cli(&["PTTL", key]).parse().expect("a number")
}

/// Waits until a key exists, or does not.
pub(crate) fn exists(redis: &Redis, key: &str, is_there: bool) {
    let wanted = if is_there { "1" } else { "0" };
    let what = if is_there { "the lock is taken" } else { "the lock is free" };
    wait_for(what, PATIENCE, || (redis.cli(&["EXISTS", key]) == wanted).then_some(()));
}
