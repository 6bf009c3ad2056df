//! Every setting: one declaration gives its flag, environment variable, file key and help.
//!
//! Flags win over the environment, the environment over the file, the file over a seed's variable,
//! and that over the default.

mod declare;
mod file;
mod sources;
mod tokens;
mod value;

use std::time::Duration;

pub(crate) use declare::Setting;
pub(crate) use sources::{Args, Sources};
pub(crate) use tokens::{Scope, TokenRule};
pub(crate) use value::{Level, Listen, LogFormat, Patterns, StoreUrl};

declare::settings! {
    listen: Listen = Setting {
        flag: "listen", env: "HAPAX_LISTEN", key: "listen",
        value: "ADDR", default: "127.0.0.1:8787", seed: None,
        help: "Where to listen; port 0 takes a free one. Anything but loopback needs tokens",
    };
    store: StoreUrl = Setting {
        flag: "store", env: "HAPAX_STORE", key: "store",
        value: "URL", default: "sqlite:hapax.db", seed: Some(("REDIS_URL", "")),
        help: "sqlite:FILE, memory:, redis://…, rediss://…, redis+sentinel://…, redis+cluster://…, postgres://…",
    };
    log: LogFormat = Setting {
        flag: "log", env: "HAPAX_LOG", key: "log",
        value: "FORMAT", default: "pretty", seed: None,
        help: "How log lines look: json or pretty",
    };
    log_level: Level = Setting {
        flag: "log-level", env: "HAPAX_LOG_LEVEL", key: "log_level",
        value: "LEVEL", default: "info", seed: None,
        help: "The least that is logged: error, warn, info, debug or trace",
    };
    lock_ttl: Duration = Setting {
        flag: "lock-ttl", env: "HAPAX_LOCK_TTL", key: "lock_ttl",
        value: "TIME", default: "5s", seed: Some(("PROCESSING_LOCK_TIMEOUT_SECONDS", "s")),
        help: "How long a lock lasts where the call does not say; at most 1h",
    };
    store_timeout: Duration = Setting {
        flag: "store-timeout", env: "HAPAX_STORE_TIMEOUT", key: "store_timeout",
        value: "TIME", default: "2s", seed: None,
        help: "The longest that one store call may take",
    };
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

#[cfg(test)]
mod tests;
