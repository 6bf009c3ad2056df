//! `hapax serve --ingest DOMAIN:SHARDS`: routes events from the Redis streams of existing workers to
//! the bus. The workers keep writing with their own script.
//!
//! ```text
//!   worker ──► scan:events:{shard} ──► reader ──► bus ──► SSE
//!                                       │    └──► scan:state:{job_id}, the channel
//!                                       └───────► the queue `ingest`: dead letters
//! ```

mod dead_letters;
mod entry;
mod event_router;
mod job_state;
mod redis_stream;
mod stream_reader;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use hapax::Tenant;
use hapax::redis::{RedisCommands, RedisConfig};

use dead_letters::IngestDeadLetters;
use event_router::EventRouter;
use redis_stream::GroupStream;
use stream_reader::{Heartbeat, StreamReader};

use crate::api::sse::EventBus;
use crate::daemon::Readiness;
use crate::settings::IngestDomains;

pub(crate) struct IngestConfig {
    pub(crate) domains: IngestDomains,
    pub(crate) group: String,
    /// The consumer name of this process. The same after a restart, so that the process first
    /// handles the entries of its predecessor.
    pub(crate) consumer: String,
    /// The Pub/Sub channel for routed events; `{domain}` and `{job_id}` are replaced.
    pub(crate) channel: Option<String>,
    /// How many deliveries turn an entry into a dead letter.
    pub(crate) max_deliveries: u64,
    /// How long a consumer may be idle before its entries are taken over.
    pub(crate) reclaim_after: Duration,
    /// How long `{domain}:state:{job_id}` is kept.
    pub(crate) state_retention: Duration,
    /// How long a reader may make no progress before the process is not ready.
    pub(crate) max_stall: Duration,
    pub(crate) store_timeout: Duration,
}

/// Starts a task for each stream and one for the dead letters. Redis need not be reachable yet.
pub(crate) fn start(
    bus: &EventBus,
    config: IngestConfig,
    redis_url: &str,
    readiness: &Readiness,
) -> anyhow::Result<()> {
    let open = || {
        let config = RedisConfig::new(redis_url)?.timeout(config.store_timeout);
        RedisCommands::open(config)
    };
    let context = "the Redis of --ingest";
    let redis = Arc::new(open().context(context)?);
    let streams: Vec<_> = config.domains.streams().collect();
    let readers: Result<Vec<_>, _> = streams.iter().map(|_| open()).collect();
    let readers = readers.context(context)?;
    let config = Arc::new(config);
    let bus = bus.clone().tenant(Tenant::default());
    let dead = Arc::new(IngestDeadLetters::new(bus.store().clone()));
    let router = Arc::new(EventRouter::new(bus, redis.clone(), config.clone()));
    for ((domain, name), reader) in streams.into_iter().zip(readers) {
        let heartbeat = Arc::new(Heartbeat::new());
        let (watched, shown, limit) = (heartbeat.clone(), name.clone(), config.max_stall);
        readiness.require("ingest", move || {
            let stalled = watched.is_stalled(limit);
            stalled.then(|| format!("the ingest reader of {shown} makes no progress"))
        });
        let stream_reader = Arc::new(StreamReader {
            domain,
            stream: GroupStream { name, config: config.clone(), redis: redis.clone(), reader },
            router: router.clone(),
            dead: dead.clone(),
            config: config.clone(),
            heartbeat,
            last_progress: None.into(),
            skipped: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        spawn_restarting(move || {
            let stream_reader = stream_reader.clone();
            async move { stream_reader.run().await }
        });
    }
    spawn_restarting(move || {
        let (dead, router) = (dead.clone(), router.clone());
        async move { dead.run(&router).await }
    });
    Ok(())
}

/// Restarts a task that panics. Its entries were not acknowledged and are delivered again, until the
/// delivery limit turns them into dead letters.
fn spawn_restarting<F: Future<Output = ()> + Send + 'static>(
    task: impl Fn() -> F + Send + 'static,
) {
    tokio::spawn(async move {
        loop {
            let _ = tokio::spawn(task()).await;
            tracing::error!("an ingest task panicked and is restarted");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

/// The name in the consumer group: the same after a restart, another on another machine or port.
pub(crate) fn default_consumer_name(listen: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let port = listen.rsplit(':').next().unwrap_or_default();
    format!("hapax-{}-{port}", host.trim())
}
