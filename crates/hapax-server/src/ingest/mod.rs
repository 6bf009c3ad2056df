//! `hapax serve --ingest DOMAIN:SHARDS`: the router for streams that workers fill with a script of
//! their own, so that they need no change.
//!
//! ```text
//!   worker ──► scan:events:{shard} ──► tail ──► bus ──► SSE
//!                                       │  └──► scan:state:{job_id}, the channel
//!                                       └─────► the queue `ingest`: dead letters
//! ```

mod dead_letters;
mod entry;
mod event_router;
mod job_state;
mod redis_stream;
mod settings;
mod stream_reader;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context;
use hapax::Tenant;
use hapax::bus::Bus;
use hapax::redis::{RawRedis, RedisConfig};

use dead_letters::DeadLetters;
use event_router::Router;
use redis_stream::Stream;
pub(crate) use settings::{Domains, Name, Plan};
use stream_reader::{Pulse, Tail};

use crate::health::Health;

/// Starts a task for each stream, and one for the dead letters. Nothing needs to be reachable yet.
pub(crate) fn start(bus: &Bus, plan: Plan, redis_url: &str, health: &Health) -> anyhow::Result<()> {
    let open = || {
        let config = RedisConfig::new(redis_url)?.limit(plan.limit);
        RawRedis::open(config)
    };
    let usable = "the Redis of --ingest";
    let redis = Arc::new(open().context(usable)?);
    let streams: Vec<_> = plan.domains.streams().collect();
    let readers: Result<Vec<_>, _> = streams.iter().map(|_| open()).collect();
    let readers = readers.context(usable)?;
    let plan = Arc::new(plan);
    let bus = bus.clone().tenant(Tenant::default());
    let dead = Arc::new(DeadLetters::new(bus.store().clone()));
    let router = Arc::new(Router::new(bus, redis.clone(), plan.clone()));
    for ((domain, name), reader) in streams.into_iter().zip(readers) {
        let pulse = Arc::new(Pulse::new());
        let (watched, shown, limit) = (pulse.clone(), name.clone(), plan.still);
        health.require(move || {
            let still = watched.stands_still(limit);
            still.then(|| format!("the router does not get on with {shown}"))
        });
        let tail = Arc::new(Tail {
            domain,
            stream: Stream::new(name, plan.clone(), redis.clone(), reader),
            router: router.clone(),
            dead: dead.clone(),
            plan: plan.clone(),
            pulse,
            seen: None.into(),
            skipped: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        for_ever(move || {
            let tail = tail.clone();
            async move { tail.follow().await }
        });
    }
    for_ever(move || {
        let (dead, router) = (dead.clone(), router.clone());
        async move { dead.work(&router).await }
    });
    Ok(())
}

/// A task that panics is begun again: what it was at was not acknowledged, and comes again until the
/// delivery cap makes it a dead letter.
fn for_ever<F: Future<Output = ()> + Send + 'static>(task: impl Fn() -> F + Send + 'static) {
    tokio::spawn(async move {
        loop {
            let _ = tokio::spawn(task()).await;
            tracing::error!("a task of the router ended by a bug, and is begun again");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

/// Who we are to a group, unless somebody says: the same after a restart, and another one on another
/// machine or port.
pub(crate) fn consumer(listen: &str) -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let port = listen.rsplit(':').next().unwrap_or_default();
    format!("hapax-{}-{port}", host.trim())
}
