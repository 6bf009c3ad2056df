//! Gauges of what waits in the store: queues, commands whose outcome is unknown, locks.
//!
//! Every node reports the same numbers, those of the whole store: dashboards take the maximum.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hapax::queue::QueueName;
use hapax::{KeyKind, OpenClaims, Store, StoreResult, metric_names};
use metrics::gauge;

use super::readiness::{Readiness, ReadinessState};

/// How many queues are reported: each has four series on every node.
const MAX_QUEUES: usize = 100;

/// Reads the gauges after every `interval`, while the store answers; never, if it is zero.
pub(super) fn spawn(store: Arc<dyn Store>, readiness: Readiness, interval: Duration) {
    if interval.is_zero() {
        return;
    }
    tokio::spawn(async move {
        let (mut queues, mut counts) = (first_queues(), false);
        loop {
            if readiness.state() == ReadinessState::Ready
                && let Err(error) = report(&*store, &mut queues, &mut counts).await
            {
                tracing::debug!("the gauges of the store were not read: {error}");
            }
            tokio::time::sleep(interval).await;
        }
    });
}

/// The queues that are reported from the start, so that alerts see their first item.
fn first_queues() -> BTreeSet<String> {
    ["outbox", "ingest"].map(str::to_owned).into()
}

/// Reports the queues that were ever seen: one that is no longer listed is empty, and its gauges say so. `counts` is whether
/// open claims were ever counted: those of a store that has too many now are not a number.
async fn report(
    store: &dyn Store,
    queues: &mut BTreeSet<String>,
    counts: &mut bool,
) -> StoreResult<()> {
    for queue in store.queues().await? {
        if queues.len() >= MAX_QUEUES {
            break;
        }
        queues.insert(queue.as_str().to_owned());
    }
    for name in queues.iter() {
        let Ok(queue) = QueueName::new(name) else { continue };
        let depth = store.depth(&queue, None).await?;
        gauge!(metric_names::QUEUE_DEPTH, "queue" => name.clone()).set(depth.waiting as f64);
        gauge!(metric_names::QUEUE_IN_FLIGHT, "queue" => name.clone()).set(depth.in_flight as f64);
        gauge!(metric_names::QUEUE_DEAD, "queue" => name.clone()).set(depth.dead as f64);
        let oldest = depth.oldest_age.unwrap_or_default().as_secs_f64();
        gauge!(metric_names::QUEUE_OLDEST, "queue" => name.clone()).set(oldest);
    }
    let commands = store.count_open(None, KeyKind::Command).await?;
    let locks = store.count_open(None, KeyKind::Lock).await?;
    *counts |= commands.is_some();
    if *counts {
        let number = |open: Option<OpenClaims>, of: fn(OpenClaims) -> u64| {
            open.map_or(f64::NAN, |open| of(open) as f64)
        };
        let set = |state, of| {
            gauge!(metric_names::COMMANDS, "state" => state).set(number(commands, of));
        };
        set("pending", |open| open.pending);
        set("unknown", |open| open.unknown);
        set("failed", |open| open.failed);
        gauge!(metric_names::LOCKS_HELD).set(number(locks, |open| open.pending));
    }
    Ok(())
}
