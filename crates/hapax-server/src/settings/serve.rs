//! The settings of `hapax serve`.

use std::time::Duration;

use crate::ingest::{Domains, Name};

use super::shared::{LOG, LOG_LEVEL, STORE, STORE_TIMEOUT};
use super::tokens::{self, TokenRule};
use super::{
    ClosingEvent, Level, Listen, LogFormat, Origins, Patterns, Secret, Section, Setting, StoreUrl,
    settings,
};

/// Its flags.
pub(crate) type Args = super::sources::Args<Vec<TokenRule>>;
/// Everything that was said about its settings.
pub(crate) type Sources = super::sources::Sources<Vec<TokenRule>>;

settings! {
    /// The settings of a server, read and checked.
    Settings, tokens: Vec<TokenRule>;
    listen: Listen = Setting {
        flag: "listen", env: "HAPAX_LISTEN", key: "listen",
        value: "ADDR", default: "127.0.0.1:8787", seed: None,
        help: "Where to listen; port 0 takes a free one. Anything but loopback needs tokens",
    };
    store: StoreUrl = STORE;
    log: LogFormat = LOG;
    log_level: Level = LOG_LEVEL;
    lock_ttl: Duration = Setting {
        flag: "lock-ttl", env: "HAPAX_LOCK_TTL", key: "lock_ttl",
        value: "TIME", default: "5s", seed: Some(("PROCESSING_LOCK_TIMEOUT_SECONDS", "s")),
        help: "How long a lock lasts where the call does not say; at most 1h",
    };
    store_timeout: Duration = STORE_TIMEOUT;
    body_limit: usize = Setting {
        flag: "body-limit", env: "HAPAX_BODY_LIMIT", key: "body_limit",
        value: "BYTES", default: "1048576", seed: None,
        help: "The largest request body",
    };
    header_timeout: Duration = Setting {
        flag: "header-timeout", env: "HAPAX_HEADER_TIMEOUT", key: "header_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "The longest that a client may take to send a request's headers",
    };
    body_timeout: Duration = Setting {
        flag: "body-timeout", env: "HAPAX_BODY_TIMEOUT", key: "body_timeout",
        value: "TIME", default: "10s", seed: None,
        help: "The longest that a client may take to send a request's body",
    };
    idle_timeout: Duration = Setting {
        flag: "idle-timeout", env: "HAPAX_IDLE_TIMEOUT", key: "idle_timeout",
        value: "TIME", default: "75s", seed: None,
        help: "How long an idle connection is kept, or one whose client does not read",
    };
    max_connections: usize = Setting {
        flag: "max-connections", env: "HAPAX_MAX_CONNECTIONS", key: "max_connections",
        value: "NUMBER", default: "16000", seed: None,
        help: "How many connections are open at once; further ones wait to be accepted",
    };
    in_flight: usize = Setting {
        flag: "in-flight", env: "HAPAX_IN_FLIGHT", key: "in_flight",
        value: "NUMBER", default: "1024", seed: None,
        help: "How many requests of one tenant are answered at once; further ones get 429",
    };
    shutdown_timeout: Duration = Setting {
        flag: "shutdown-timeout", env: "HAPAX_SHUTDOWN_TIMEOUT", key: "shutdown_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long requests in flight may take to end at shutdown",
    };
    sweep_interval: Duration = Setting {
        flag: "sweep-interval", env: "HAPAX_SWEEP_INTERVAL", key: "sweep_interval",
        value: "TIME", default: "60s", seed: None,
        help: "How often expired claims and records are deleted",
    };
    event_lifetime: Duration = Setting {
        flag: "event-lifetime", env: "HAPAX_EVENT_LIFETIME", key: "events.lifetime",
        value: "TIME", default: "2h", seed: None,
        help: "How long a job is kept after its last event: log, state and dedup together",
    };
    event_entries: usize = Setting {
        flag: "event-entries", env: "HAPAX_EVENT_ENTRIES", key: "events.entries",
        value: "NUMBER", default: "10000", seed: None,
        help: "How many events of a job are kept, the newest ones",
    };
    event_final: ClosingEvent = Setting {
        flag: "event-final", env: "HAPAX_EVENT_FINAL", key: "events.final",
        value: "STAGE:SEQ", default: "done:51", seed: None,
        help: "The event that closes a job although it does not say `final`; empty for none",
    };
    event_poll: Duration = Setting {
        flag: "event-poll", env: "HAPAX_EVENT_POLL", key: "events.poll",
        value: "TIME", default: "500ms", seed: None,
        help: "How often the store is asked for events that a lost hint did not tell of",
    };
    event_tail_limit: Duration = Setting {
        flag: "event-tail-limit", env: "HAPAX_EVENT_TAIL_LIMIT", key: "events.tail_limit",
        value: "TIME", default: "10s", seed: None,
        help: "How long that may fail before /readyz turns red",
    };
    sse_connections: usize = Setting {
        flag: "sse-connections", env: "HAPAX_SSE_CONNECTIONS", key: "sse.connections",
        value: "NUMBER", default: "10000", seed: None,
        help: "How many event streams are open at once; further ones get 503",
    };
    sse_keep_alive: Duration = Setting {
        flag: "sse-keep-alive", env: "HAPAX_SSE_KEEP_ALIVE", key: "sse.keep_alive",
        value: "TIME", default: "15s", seed: None,
        help: "How often a comment is sent on an event stream on which nothing happens",
    };
    sse_retry: Duration = Setting {
        flag: "sse-retry", env: "HAPAX_SSE_RETRY", key: "sse.retry",
        value: "TIME", default: "2s", seed: None,
        help: "How long clients wait before they connect again; each is told up to half more or less",
    };
    sse_write_timeout: Duration = Setting {
        flag: "sse-write-timeout", env: "HAPAX_SSE_WRITE_TIMEOUT", key: "sse.write_timeout",
        value: "TIME", default: "30s", seed: None,
        help: "How long a client may read nothing of what is sent before its event stream is cut off",
    };
    sse_origins: Origins = Setting {
        flag: "sse-origins", env: "HAPAX_SSE_ORIGINS", key: "sse.origins",
        value: "ORIGINS", default: "", seed: None,
        help: "Web sites whose pages may read events and jobs, comma-separated, such as https://app.example; * for all",
    };
    sse_secret: Option<Secret> = Setting {
        flag: "sse-secret", env: "HAPAX_SSE_SECRET", key: "sse.secret",
        value: "TEXT", default: "", seed: None,
        help: "Signs the links of `hapax token link`; at least 32 bytes, better in the environment or the file",
    };
    redis_verbatim: Patterns = Setting {
        flag: "redis-verbatim", env: "HAPAX_REDIS_VERBATIM", key: "redis.verbatim",
        value: "PATTERNS", default: "processing:*,user:*:last_transaction", seed: None,
        help: "Keys of the tenant `default` that are used verbatim on Redis, comma-separated",
    };
    ingest: Domains = Setting {
        flag: "ingest", env: "HAPAX_INGEST", key: "ingest",
        value: "DOMAIN:SHARDS…", default: "", seed: None,
        help: "Route the streams DOMAIN:events:0 up to SHARDS, which workers fill with a script of their own; may be repeated",
    };
    ingest_from: Option<StoreUrl> = Setting {
        flag: "ingest-from", env: "HAPAX_INGEST_FROM", key: "ingest_from",
        value: "URL", default: "", seed: Some(("REDIS_URL", "")),
        help: "The Redis of those streams, where the store is none",
    };
    group: Name = Setting {
        flag: "group", env: "HAPAX_GROUP", key: "group",
        value: "NAME", default: "eventrouter", seed: None,
        help: "The consumer group that reads those streams; stop an older router of it first",
    };
    publish_channel: Option<Name> = Setting {
        flag: "publish-channel", env: "HAPAX_PUBLISH_CHANNEL", key: "publish_channel",
        value: "CHANNEL", default: "", seed: None,
        help: "Publish each routed event on this channel too; {domain} and {job_id} stand for its own",
    };
    ingest_deliveries: usize = Setting {
        flag: "ingest-deliveries", env: "HAPAX_INGEST_DELIVERIES", key: "ingest_deliveries",
        value: "NUMBER", default: "10", seed: None,
        help: "How many times an entry is delivered before it is a dead letter of the queue `ingest`",
    };
    ingest_reclaim: Duration = Setting {
        flag: "ingest-reclaim", env: "HAPAX_INGEST_RECLAIM", key: "ingest_reclaim",
        value: "TIME", default: "30s", seed: None,
        help: "How long a consumer of the group may be silent before its entries are taken over",
    };
}

/// `[[token]]`: who may call.
impl Section for Vec<TokenRule> {
    const TABLE: &'static [Setting] = TABLE;
    const KEYS: &'static str = "[[token]]";
    const EXAMPLES: Option<&'static str> = None;

    fn take(file: &mut toml::Table) -> anyhow::Result<Self> {
        match file.remove("token") {
            Some(toml::Value::Array(entries)) => tokens::parse(entries),
            Some(_) => anyhow::bail!("`token` takes tables, as in [[token]]"),
            None => Ok(Self::new()),
        }
    }
}

/// The longest lease or lock TTL.
pub(crate) const LONGEST_LEASE: Duration = Duration::from_secs(3600);

impl Settings {
    /// What no single value can know about itself.
    fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.lock_ttl <= LONGEST_LEASE, "the lock TTL is at most 1h");
        anyhow::ensure!(
            self.listen.is_loopback() || !self.tokens.is_empty(),
            "without tokens the server listens on a loopback address only, and {} is none; \
             `hapax token new` makes one and prints the lines for hapax.toml",
            self.listen.text(),
        );
        Ok(())
    }
}
