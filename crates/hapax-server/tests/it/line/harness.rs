//! LINE's side, a bot, and gateways between them.

use std::time::Duration;

use hapax_line::simulator::{SimulatedApi, events};
use hapax_line::{ChannelSecrets, LineClient};
use hapax_testkit::Redis;
use serde_json::Value;

use crate::line::bot::{Bot, Call};
use crate::line::gateway::{Gateway, Start};
use crate::line::leaks::Tokens;
use crate::support::store::TestStore;

pub(crate) use crate::support::{WAIT_TIMEOUT, eventually};
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
    /// The URL by which the gateways open the store.
    pub(crate) store_url: String,
    pub(crate) tokens: Tokens,
    /// The secret of the channel.
    pub(crate) secret: &'static str,
    store: TestStore,
}

impl Scene {
    pub(crate) async fn on(store: TestStore) -> Self {
        Self::of_channel(SECRET, store).await
    }

    /// A scene of a channel with its own secret.
    pub(crate) async fn of_channel(secret: &'static str, store: TestStore) -> Self {
        let line =
            SimulatedApi::start("127.0.0.1:0", ACCESS_TOKEN).await.expect("LINE's side starts");
        let client =
            LineClient::new(&line.base(), ACCESS_TOKEN).expect("a base").timeout(WAIT_TIMEOUT);
        let bot = Bot::start(ChannelSecrets::new(secret).expect("a secret"), client).await;
        Self { line, bot, store_url: store.url(), tokens: Tokens::default(), secret, store }
    }

    pub(crate) async fn on_redis() -> Self {
        Self::on(TestStore::redis()).await
    }

    /// A scene on Redis, and a gateway without further settings.
    pub(crate) async fn started() -> (Self, Gateway) {
        let scene = Self::on_redis().await;
        let gateway = scene.start();
        (scene, gateway)
    }

    /// A scene on Redis, and a gateway whose locks are held for longer than any machine stalls.
    pub(crate) async fn with_long_locks() -> (Self, Gateway) {
        let scene = Self::on_redis().await;
        let gateway = scene.gateway().long_locks().start();
        (scene, gateway)
    }

    /// The same with a bot that holds its calls.
    pub(crate) async fn with_held_locks() -> (Self, Gateway) {
        let (scene, gateway) = Self::with_long_locks().await;
        scene.bot.holds();
        (scene, gateway)
    }

    /// The Redis of a scene that is on one.
    pub(crate) fn redis(&self) -> &Redis {
        match &self.store {
            TestStore::Redis(redis) => redis,
            _ => panic!("this scene is on {}", self.store_url),
        }
    }

    /// Sends a webhook, and waits until the bot was called this many times in all.
    pub(crate) async fn send_until_begun(
        &self,
        gateway: &Gateway,
        events: &[Value],
        calls: usize,
    ) -> Vec<Call> {
        gateway.send(events).await;
        self.bot.begun(calls)
    }

    /// Sends a webhook, and waits until this many senders were told to wait in all.
    pub(crate) async fn send_until_told(&self, gateway: &Gateway, events: &[Value], times: usize) {
        gateway.send(events).await;
        self.told_in_all(times);
    }

    /// Sends a webhook, and waits until the bot has finished this many calls in all.
    pub(crate) async fn send_until_handled(
        &self,
        gateway: &Gateway,
        events: &[Value],
        calls: usize,
    ) {
        gateway.send(events).await;
        self.bot.ended(calls);
        gateway.idle();
    }

    /// Lets the bot finish this number of calls, and waits until the queue is empty.
    pub(crate) fn finish(&self, gateway: &Gateway, calls: usize) {
        self.bot.let_go(calls);
        gateway.idle();
    }

    /// The command line of a gateway.
    pub(crate) fn gateway(&self) -> Start<'_> {
        Start::new(self)
    }

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
        eventually(&format!("{times} are told to wait"), || self.told().len() >= times);
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

pub(crate) fn user(number: u32) -> String {
    format!("Uf00d{number:028x}")
}

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
    eventually(what, || redis.cli(&["EXISTS", key]) == wanted);
}
