//! Settings of several commands.

use std::time::Duration;

use anyhow::ensure;

use super::declare::Declaration;
use super::values::MemorySize;

/// The longest lease or lock TTL of the contract.
pub(crate) const MAX_LEASE: Duration = Duration::from_secs(3600);
/// A renewal must fit into a third of a lease.
pub(crate) const MIN_LEASE: Duration = Duration::from_millis(300);

/// Declares settings that several commands have.
macro_rules! shared {
    ($($name:ident = $declaration:expr;)+) => {
        $(pub(super) const $name: Declaration = $declaration;)+
    };
}

shared! {
    LISTEN = Declaration::new("ADDR", "", "The address to listen on; port 0 takes a free one");
    STORE = Declaration::new("URL", "sqlite:hapax.db",
        "sqlite:FILE, memory:, redis://…, rediss://…, redis+sentinel://…, redis+cluster://…, postgres://…").top_key().seed("REDIS_URL", "");
    STORE_TIMEOUT = Declaration::new("TIME", "2s",
        "The longest that one store call may take").top_key();
    ACCEPT_RISK = Declaration::new("NAME…", "",
        "Use the store although this check of `hapax doctor` refuses it; may be repeated").top_key();
    GAUGE_INTERVAL = Declaration::new("TIME", "30s",
        "How often queues, commands and locks are counted for /metrics; 0s for never").top_key();
    NODE = Declaration::new("NAME", "",
        "The name of this process on the console, and of its claims' owner; by default the command and a random number");
    REPORT_INTERVAL = Declaration::new("TIME", "2s",
        "How often activity is written to the store for the console, where there was any; 0s for never, and no heartbeat").top_key();
    SWEEP_INTERVAL = Declaration::new("TIME", "60s",
        "How often expired entries of the store are deleted").top_key();
    LOG = Declaration::new("FORMAT", "pretty", "The format of log lines: json or pretty").top_key();
    LOG_LEVEL = Declaration::new("LEVEL", "info",
        "The least severe level that is logged: error, warn, info, debug or trace").top_key();
    ADMIN = Declaration::new("ADDR", "",
        "Serve /healthz, /readyz and /metrics on this address; on loopback /v1/queues too");
    HEADER_TIMEOUT = Declaration::new("TIME", "10s",
        "The longest that a client may take to send a request's headers");
    BODY_TIMEOUT = Declaration::new("TIME", "10s",
        "The longest that a client may take to send a request's body");
    BUFFER_MEMORY = Declaration::new("SIZE", "256MiB",
        "The memory for all request bodies that are buffered, and what they are parsed into; 503 beyond it");
    IDLE_TIMEOUT = Declaration::new("TIME", "75s",
        "How long a client connection is kept that is idle, or whose client does not read");
    STORE_CALLS = Declaration::new("NUMBER", "32",
        "How many calls the store has at once; beyond that tenants, and a proxy's callers, take turns");
    MAX_CONNECTIONS = Declaration::new("NUMBER", "10000",
        "How many client connections are open at once, tunnels included; a further one takes the place of the longest idle one, or waits");
    SHUTDOWN_TIMEOUT = Declaration::new("TIME", "30s",
        "How long requests in flight may take to end at shutdown");
    LOCK_TTL = Declaration::new("TIME", "5s",
        "How long a lock lasts where the call does not say; at most 1h").seed("PROCESSING_LOCK_TIMEOUT_SECONDS", "s");
    LEASE = Declaration::new("TIME", "30s",
        "How long a claim outlives a process that died; renewed while it lives; at most 1h");
    RETENTION = Declaration::new("TIME", "24h", "How long an outcome is remembered");
    MAX_ATTEMPTS = Declaration::new("NUMBER", "10",
        "How many attempts fail before an item becomes a dead letter");
    BACKOFF = Declaration::new("TIME", "500ms",
        "The wait after an item's first failure; it doubles after each further one");
    BACKOFF_MAX = Declaration::new("TIME", "60s", "The longest wait between two attempts");
}

/// Checks that the largest body fits into the memory for all bodies.
pub(super) fn check_buffer_memory(
    largest: usize,
    flag: &str,
    memory: MemorySize,
) -> anyhow::Result<()> {
    ensure!(largest <= memory.0, "--buffer-memory is at least {flag}: one body must fit into it");
    Ok(())
}

/// Checks the settings of a queue's worker.
pub(super) fn check_worker(
    lease: Duration,
    backoff: Duration,
    backoff_max: Duration,
) -> anyhow::Result<()> {
    ensure!(lease <= MAX_LEASE, "the lease is at most 1h");
    ensure!(backoff <= backoff_max, "--backoff is at most --backoff-max");
    Ok(())
}
