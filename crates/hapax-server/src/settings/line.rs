//! The settings of `hapax line`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use hapax::OnUnknown;
use hapax::lock::OnStoreError;
use hapax::queue::QueueName;
use hapax_line::{ChannelSecrets, MAX_TEXT};

use super::declare::{Declaration, settings};
use super::shared::*;
use super::values::*;

const EXAMPLES: &str = "\
Examples:
  export LINE_CHANNEL_SECRET=… LINE_CHANNEL_ACCESS_TOKEN=…     from the LINE Developers Console
  hapax line --upstream http://127.0.0.1:3000/callback --store redis://127.0.0.1:6379
      the bot gets each event once, as a webhook with that event alone: signed with the same secret,
      with Idempotency-Key, Hapax-Attempt and Hapax-Fence; a 2xx within --handle-timeout says that
      it is done, anything else is tried again
  hapax line --upstream http://127.0.0.1:3000/callback --rules rules.toml
      which events are locked, and how
  LINE_CHANNEL_SECRET=NEW,OLD hapax line --upstream http://127.0.0.1:3000/callback
      while the secret is changed; the first one signs
  LINE_CHANNEL_SECRET=simulated-secret LINE_CHANNEL_ACCESS_TOKEN=simulated-token \\
  LINE_API_BASE=http://127.0.0.1:8790 hapax line --upstream http://127.0.0.1:3000/callback
      without an account: `hapax line simulate` beside it is LINE

Give LINE the URL https://…/line/webhook, with whatever has your TLS in front; let no other path
through. Events that failed --max-attempts times are dead letters of the channel's queue, which the
gateway calls `line` and names at its start:
  hapax queue dead line --server http://127.0.0.1:8789";

settings! {
    /// The settings of the LINE gateway, read and checked.
    LineSettings, "line", Some(EXAMPLES);
    listen: ListenAddress = LISTEN.default("127.0.0.1:8789")
        .help("The address where webhooks are taken; port 0 takes a free one");
    store: SecretUrl = STORE;
    upstream: Option<SecretUrl> = Declaration::new("URL", "",
        "The bot: each event is posted there, as a webhook of its own");
    rules: Option<PathBuf> = Declaration::new("FILE", "",
        "Which events are locked, and how (TOML); without it text, location and postback are");
    channel_secret: Option<ChannelSecrets> = Declaration::new("SECRET", "",
        "Checks and makes signatures; two as NEW,OLD while it is changed. Better not as a flag: others see it")
        .env("LINE_CHANNEL_SECRET");
    channel_access_token: Option<AccessToken> = Declaration::new("TOKEN", "",
        "Lets the gateway tell a user to wait. Better not as a flag: others see it")
        .env("LINE_CHANNEL_ACCESS_TOKEN");
    api_base: SecretUrl = Declaration::new("URL", hapax_line::LINE_API_BASE,
        "The base URL of LINE's Messaging API").env("LINE_API_BASE");
    queue: Option<QueueName> = Declaration::new("NAME", "",
        "The queue of the events; without it that of the channel, which follows from its secret");
    lock: LenientBool = Declaration::new("BOOL", "true", "Whether events are locked at all")
        .seed("PROCESSING_LOCK_ENABLED", "");
    lock_ttl: Duration = LOCK_TTL
        .help("How long an event holds its user's lock where its rule does not say; at most 1h");
    busy_text: Option<BusyText> = Declaration::new("TEXT", "",
        "The reply to a user who has to wait; else that of the rules, else ⏳ 正在為您查詢天氣，請稍候...");
    lease: Duration = LEASE;
    max_attempts: usize = MAX_ATTEMPTS.default("5");
    backoff: Duration = BACKOFF.default("1s");
    backoff_max: Duration = BACKOFF_MAX;
    on_unknown: OnUnknown = Declaration::new("POLICY", "rerun",
        "Where the bot may have acted: rerun and tell it, or refuse (a dead letter)");
    on_store_error: OnStoreError = Declaration::new("POLICY", "open",
        "Where the store fails: open (handled, unprotected, and counted), or closed (503)");
    handle_timeout: Duration = Declaration::new("TIME", "30s",
        "The longest that the bot may take for one event");
    in_flight: usize = Declaration::new("NUMBER", "256",
        "How many events are with the bot at once; further ones wait in the queue");
    retention: Duration = RETENTION
        .help("How long a handled event is recognised when LINE delivers it again")
        .aliases(&["remember"]);
    admin: Option<ListenAddress> = ADMIN;
    header_timeout: Duration = HEADER_TIMEOUT;
    body_timeout: Duration = BODY_TIMEOUT;
    buffer_memory: MemorySize = BUFFER_MEMORY;
    idle_timeout: Duration = IDLE_TIMEOUT;
    max_connections: usize = MAX_CONNECTIONS;
    shutdown_timeout: Duration =
        SHUTDOWN_TIMEOUT.help("How long events in hand may take at shutdown");
    store_timeout: Duration = Declaration::new("TIME", "500ms",
        "The longest that all store calls of one webhook may take, and any other one");
    accept_risk: CheckNames = ACCEPT_RISK;
    gauge_interval: DurationOrZero = GAUGE_INTERVAL;
    node: Option<NodeName> = NODE;
    report_interval: DurationOrZero = REPORT_INTERVAL;
    sweep_interval: Duration = SWEEP_INTERVAL;
    log: LogFormat = LOG;
    log_level: LogLevel = LOG_LEVEL;
}

impl LineSettings {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.lock_ttl <= MAX_LEASE, "the lock TTL is at most 1h");
        check_worker(self.lease, self.backoff, self.backoff_max)
    }
}

/// True or false, in every spelling that the original bot's settings accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LenientBool(pub(crate) bool);

impl SettingValue for LenientBool {
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" | "t" | "y" => Ok(Self(true)),
            "false" | "0" | "no" | "off" | "f" | "n" => Ok(Self(false)),
            _ => Err("true or false is expected (1 or 0, yes or no, on or off)".into()),
        }
    }
}

/// The channel's secret, or two of them.
impl SettingValue for ChannelSecrets {
    fn parse(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct AccessToken(pub(crate) SecretText);

impl SettingValue for AccessToken {
    fn parse(text: &str) -> Result<Self, String> {
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(SecretText(text.into()))),
            false => Err("an access token is one word of ASCII, without spaces".into()),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct BusyText(pub(crate) String);

impl SettingValue for BusyText {
    fn parse(text: &str) -> Result<Self, String> {
        match text.encode_utf16().count() {
            1..=MAX_TEXT => Ok(Self(text.into())),
            _ => Err(format!("a text of 1 to {MAX_TEXT} UTF-16 units is expected")),
        }
    }
}
