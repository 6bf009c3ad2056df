//! The settings of `hapax serve`.

use std::time::Duration;

use super::shared::{LOG, LOG_LEVEL, STORE, STORE_TIMEOUT};
use super::tokens::{self, TokenRule};
use super::{Level, Listen, LogFormat, Patterns, Section, Setting, StoreUrl, settings};

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
        value: "NUMBER", default: "10000", seed: None,
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
    redis_verbatim: Patterns = Setting {
        flag: "redis-verbatim", env: "HAPAX_REDIS_VERBATIM", key: "redis.verbatim",
        value: "PATTERNS", default: "processing:*,user:*:last_transaction", seed: None,
        help: "Keys of the tenant `default` that are used verbatim on Redis, comma-separated",
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
