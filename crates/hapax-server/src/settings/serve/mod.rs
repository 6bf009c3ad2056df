//! The settings of `hapax serve`.

mod tokens;
mod values;

use std::time::Duration;

use anyhow::ensure;

use super::declare::{Declaration, FileOnly, settings};
use super::shared::*;
use super::values::*;
pub(crate) use tokens::{TokenRule, TokenScope, check_token_name};
pub(crate) use values::{
    AllowedOrigins, ConsoleReveal, ConsoleSwitch, IngestDomains, SigningSecret,
};
use values::{ClosingEventSetting, RedisName};

settings! {
    /// The settings of a server, read and checked.
    ServeSettings, "", None, tokens: Vec<TokenRule>;
    listen: ListenAddress = LISTEN.default("127.0.0.1:8787")
        .help("The address to listen on; port 0 takes a free one. Anything but loopback needs tokens");
    store: SecretUrl = STORE;
    log: LogFormat = LOG;
    log_level: LogLevel = LOG_LEVEL;
    lock_ttl: Duration = LOCK_TTL;
    store_timeout: Duration = STORE_TIMEOUT;
    store_calls: usize = STORE_CALLS;
    body_limit: usize = Declaration::new("BYTES", "1048576", "The largest request body");
    header_timeout: Duration = HEADER_TIMEOUT;
    body_timeout: Duration = BODY_TIMEOUT;
    buffer_memory: MemorySize = BUFFER_MEMORY;
    idle_timeout: Duration = IDLE_TIMEOUT;
    max_connections: usize = MAX_CONNECTIONS.default("16000");
    in_flight: usize = Declaration::new("NUMBER", "1024",
        "How many requests of one tenant are answered at once; further ones get 429");
    shutdown_timeout: Duration = SHUTDOWN_TIMEOUT;
    accept_risk: CheckNames = ACCEPT_RISK;
    gauge_interval: DurationOrZero = GAUGE_INTERVAL;
    node: Option<NodeName> = NODE;
    report_interval: DurationOrZero = REPORT_INTERVAL;
    sweep_interval: Duration = SWEEP_INTERVAL;
    event_retention: Duration = Declaration::new("TIME", "2h",
        "How long a job is kept after its last event: log, state and dedup together")
        .table("events").aliases(&["event_lifetime"]);
    event_entries: usize = Declaration::new("NUMBER", "10000",
        "How many events of a job are kept, the newest ones").table("events");
    event_final: ClosingEventSetting = Declaration::new("STAGE:SEQ", "done:51",
        "The event that closes a job although it does not say `final`; empty for none").table("events");
    event_poll: Duration = Declaration::new("TIME", "500ms",
        "How often the store is asked for events whose notification was lost").table("events");
    event_tail_timeout: Duration = Declaration::new("TIME", "10s",
        "How long reading the events may fail before /readyz turns red")
        .table("events").aliases(&["event_tail_limit"]);
    sse_connections: usize = Declaration::new("NUMBER", "10000",
        "How many event streams are open at once; further ones get 503").table("sse");
    sse_tenant_connections: Option<usize> = Declaration::new("NUMBER", "",
        "How many of these one tenant has; all of them by default, half of them where there are several tenants").table("sse");
    sse_link_connections: usize = Declaration::new("NUMBER", "100",
        "How many of these are opened with one signed link").table("sse");
    sse_keep_alive: Duration = Declaration::new("TIME", "15s",
        "How often a comment is sent on an event stream on which nothing happens").table("sse");
    sse_retry: Duration = Declaration::new("TIME", "2s",
        "How long clients wait before they reconnect; each is told up to half more or less").table("sse");
    sse_write_timeout: Duration = Declaration::new("TIME", "30s",
        "How long a client may read nothing before its event stream is cut off").table("sse");
    sse_origins: AllowedOrigins = Declaration::new("ORIGINS", "",
        "Web sites whose pages may read events and jobs, comma-separated, such as https://app.example; * for all")
        .table("sse");
    sse_secret: Option<SigningSecret> = Declaration::new("TEXT", "",
        "Signs the links of `hapax token link`; at least 32 bytes, better in the environment or the file")
        .table("sse");
    redis_verbatim: KeyPatterns = Declaration::new("PATTERNS", "processing:*,user:*:last_transaction",
        "Keys of the tenant `default` that are used verbatim on Redis, comma-separated").table("redis");
    console: ConsoleSwitch = Declaration::new("on|off", "on",
        "Whether / is the console and /v1/session signs in to it; off answers 404 there");
    console_reveal: ConsoleReveal = Declaration::new("allowed|never", "allowed",
        "Whether an operator of the console may reveal keys, payloads and answers; each reveal is audited");
    ingest: IngestDomains = Declaration::new("DOMAIN:SHARDS…", "",
        "Route the streams DOMAIN:events:0 up to SHARDS, which workers fill with a script of their own; may be repeated");
    ingest_from: Option<SecretUrl> = Declaration::new("URL", "",
        "The Redis of those streams, where the store is none").seed("REDIS_URL", "");
    group: RedisName = Declaration::new("NAME", "eventrouter",
        "The consumer group that reads those streams; stop an older router of it first");
    publish_channel: Option<RedisName> = Declaration::new("CHANNEL", "",
        "Publish each routed event on this channel too; {domain} and {job_id} stand for its own");
    ingest_deliveries: usize = Declaration::new("NUMBER", "10",
        "How many times an entry is delivered before it is a dead letter of the queue `ingest`");
    ingest_reclaim: Duration = Declaration::new("TIME", "30s",
        "How long a consumer of the group may be silent before its entries are taken over");
}

/// `[[token]]`: the tokens that may call.
impl FileOnly for Vec<TokenRule> {
    const KEYS: &'static str = "[[token]]";

    fn take(file: &mut toml::Table) -> anyhow::Result<Self> {
        match file.remove("token") {
            Some(toml::Value::Array(entries)) => tokens::parse(entries),
            Some(_) => anyhow::bail!("`token` takes tables, as in [[token]]"),
            None => Ok(Self::new()),
        }
    }
}

/// How many connections event streams should leave to everything else.
const SPARE_CONNECTIONS: usize = 64;

impl ServeSettings {
    /// Warns if event streams can take all connections: then they are refused by none, and calls of the API
    /// and of `/healthz` wait for a connection.
    pub(crate) fn connection_warning(&self) -> Option<String> {
        let (all, streams) = (self.max_connections, self.sse_connections);
        (all < streams.saturating_add(SPARE_CONNECTIONS)).then(|| {
            format!(
                "--max-connections ({all}) leaves less than {SPARE_CONNECTIONS} beside \
                 --sse-connections ({streams}): event streams can take all connections, and further \
                 clients wait for one, also for /healthz; raise the one or lower the other"
            )
        })
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.lock_ttl <= MAX_LEASE, "the lock TTL is at most 1h");
        check_buffer_memory(self.body_limit, "--body-limit", self.buffer_memory)?;
        ensure!(
            self.listen.is_loopback() || !self.tokens.is_empty(),
            "without tokens the server listens on a loopback address only, and {} is none; \
             `hapax token new` makes one and prints the lines for hapax.toml",
            self.listen.text(),
        );
        Ok(())
    }
}
