//! Every setting of the gateway: one declaration gives its flag, environment variable, file key and
//! help.

mod channel;
#[cfg(test)]
mod tests;
mod value;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::ensure;
use hapax::OnUnknown;
use hapax::lock::OnStoreError;

use crate::settings::shared::{LOG, LOG_LEVEL, STORE};
use crate::settings::{
    self, LONGEST_LEASE, Level, Listen, LogFormat, Setting, StoreUrl, settings, sources,
};
pub(super) use channel::Channel;
use value::{AccessToken, BusyText, ChannelSecret, Switch};

/// Its flags.
pub(crate) type Flags = sources::Args<Section>;
/// Everything that was said about its settings.
pub(crate) type Sources = sources::Sources<Section>;

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
through. Events that failed --max-attempts times are dead letters of the queue `line`:
  hapax queue dead line --store redis://127.0.0.1:6379";

/// The file says nothing to it that a flag could not.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Section;

impl settings::Section for Section {
    const TABLE: &'static [Setting] = TABLE;
    const KEYS: &'static str = "no others";
    const EXAMPLES: Option<&'static str> = Some(EXAMPLES);

    fn take(_: &mut toml::Table) -> anyhow::Result<Self> {
        Ok(Self)
    }
}

settings! {
    /// What flags, environment and file say.
    Settings, section: Section;
    listen: Listen = Setting {
        flag: "listen", env: "HAPAX_LISTEN", key: "line.listen",
        value: "ADDR", default: "127.0.0.1:8789", seed: None,
        help: "Where webhooks are taken; port 0 takes a free one",
    };
    store: StoreUrl = STORE;
    upstream: Option<StoreUrl> = Setting {
        flag: "upstream", env: "HAPAX_UPSTREAM", key: "line.upstream",
        value: "URL", default: "", seed: None,
        help: "The bot: each event is posted there, as a webhook of its own",
    };
    rules: Option<PathBuf> = Setting {
        flag: "rules", env: "HAPAX_RULES", key: "line.rules",
        value: "FILE", default: "", seed: None,
        help: "Which events are locked, and how (TOML); without it text, location and postback are",
    };
    channel_secret: Option<ChannelSecret> = Setting {
        flag: "channel-secret", env: "LINE_CHANNEL_SECRET", key: "line.channel_secret",
        value: "SECRET", default: "", seed: None,
        help: "Checks and makes signatures; two as NEW,OLD while it is changed. Better not as a flag: others see it",
    };
    access_token: Option<AccessToken> = Setting {
        flag: "channel-access-token", env: "LINE_CHANNEL_ACCESS_TOKEN", key: "line.channel_access_token",
        value: "TOKEN", default: "", seed: None,
        help: "Lets the gateway tell somebody to wait. Better not as a flag: others see it",
    };
    api_base: StoreUrl = Setting {
        flag: "api-base", env: "LINE_API_BASE", key: "line.api_base",
        value: "URL", default: hapax_line::LINE_API_BASE, seed: None,
        help: "Where LINE's Messaging API is",
    };
    lock: Switch = Setting {
        flag: "lock", env: "HAPAX_LOCK", key: "line.lock",
        value: "BOOL", default: "true", seed: Some(("PROCESSING_LOCK_ENABLED", "")),
        help: "Whether events are locked at all",
    };
    lock_ttl: Duration = Setting {
        flag: "lock-ttl", env: "HAPAX_LOCK_TTL", key: "line.lock_ttl",
        value: "TIME", default: "5s", seed: Some(("PROCESSING_LOCK_TIMEOUT_SECONDS", "s")),
        help: "How long an event holds its user's lock where its rule does not say; at most 1h",
    };
    busy_text: Option<BusyText> = Setting {
        flag: "busy-text", env: "HAPAX_BUSY_TEXT", key: "line.busy_text",
        value: "TEXT", default: "", seed: None,
        help: "What is said to somebody who has to wait; else what the rules say, else ⏳ 正在為您查詢天氣，請稍候...",
    };
    lease: Duration = Setting {
        flag: "lease", env: "HAPAX_LEASE", key: "line.lease",
        value: "TIME", default: "30s", seed: None,
        help: "How long a gateway that died is believed alive; at most 1h",
    };
    max_attempts: usize = Setting {
        flag: "max-attempts", env: "HAPAX_MAX_ATTEMPTS", key: "line.max_attempts",
        value: "NUMBER", default: "5", seed: None,
        help: "How often an event is tried before it is a dead letter",
    };
    backoff: Duration = Setting {
        flag: "backoff", env: "HAPAX_BACKOFF", key: "line.backoff",
        value: "TIME", default: "1s", seed: None,
        help: "How long an event waits after its first failure; twice as long after each further one",
    };
    backoff_max: Duration = Setting {
        flag: "backoff-max", env: "HAPAX_BACKOFF_MAX", key: "line.backoff_max",
        value: "TIME", default: "60s", seed: None,
        help: "The longest such wait",
    };
    on_unknown: OnUnknown = Setting {
        flag: "on-unknown", env: "HAPAX_ON_UNKNOWN", key: "line.on_unknown",
        value: "POLICY", default: "rerun", seed: None,
        help: "Where the bot may have acted and nobody knows: rerun and tell it, or refuse (a dead letter)",
    };
    on_store_error: OnStoreError = Setting {
        flag: "on-store-error", env: "HAPAX_ON_STORE_ERROR", key: "line.on_store_error",
        value: "POLICY", default: "open", seed: None,
        help: "Where the store fails: open (handled, unprotected, and counted), or closed (503)",
    };
    handle_timeout: Duration = Setting {
        flag: "handle-timeout", env: "HAPAX_HANDLE_TIMEOUT", key: "line.handle_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long the bot may take for one event",
    };
    in_flight: usize = Setting {
        flag: "in-flight", env: "HAPAX_IN_FLIGHT", key: "line.in_flight",
        value: "NUMBER", default: "256", seed: None,
        help: "How many events are with the bot at once; further ones wait in the queue",
    };
    remember: Duration = Setting {
        flag: "remember", env: "HAPAX_REMEMBER", key: "line.remember",
        value: "TIME", default: "24h", seed: None,
        help: "How long a handled event is recognised when LINE delivers it again",
    };
    admin: Option<Listen> = Setting {
        flag: "admin", env: "HAPAX_ADMIN", key: "line.admin",
        value: "ADDR", default: "", seed: None,
        help: "Serve /healthz, /readyz and /metrics there; on loopback /v1/queues too",
    };
    header_timeout: Duration = Setting {
        flag: "header-timeout", env: "HAPAX_HEADER_TIMEOUT", key: "line.header_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "How long a client may take to send a request's headers",
    };
    body_timeout: Duration = Setting {
        flag: "body-timeout", env: "HAPAX_BODY_TIMEOUT", key: "line.body_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "How long a client may take to send a request's body",
    };
    idle_timeout: Duration = Setting {
        flag: "idle-timeout", env: "HAPAX_IDLE_TIMEOUT", key: "line.idle_timeout",
        value: "TIME", default: "75s", seed: None,
        help: "How long an idle client connection is kept, or one whose client does not read",
    };
    max_connections: usize = Setting {
        flag: "max-connections", env: "HAPAX_MAX_CONNECTIONS", key: "line.max_connections",
        value: "NUMBER", default: "10000", seed: None,
        help: "How many client connections are open at once; further ones wait to be accepted",
    };
    shutdown_timeout: Duration = Setting {
        flag: "shutdown-timeout", env: "HAPAX_SHUTDOWN_TIMEOUT", key: "line.shutdown_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long events in hand may take at shutdown",
    };
    store_timeout: Duration = Setting {
        flag: "store-timeout", env: "HAPAX_STORE_TIMEOUT", key: "line.store_timeout",
        value: "TIME", default: "500ms", seed: None,
        help: "How long all store calls of one webhook may take, and any other one",
    };
    sweep_interval: Duration = Setting {
        flag: "sweep-interval", env: "HAPAX_SWEEP_INTERVAL", key: "sweep_interval",
        value: "TIME", default: "60s", seed: None,
        help: "How often events that need not be recognised any more are deleted",
    };
    log: LogFormat = LOG;
    log_level: Level = LOG_LEVEL;
}

impl Settings {
    /// What no single value can know about itself.
    fn check(&self) -> anyhow::Result<()> {
        let Section = self.section;
        ensure!(self.lease <= LONGEST_LEASE, "the lease is at most 1h");
        ensure!(self.lock_ttl <= LONGEST_LEASE, "the lock TTL is at most 1h");
        ensure!(self.backoff <= self.backoff_max, "--backoff is at most --backoff-max");
        Ok(())
    }
}
