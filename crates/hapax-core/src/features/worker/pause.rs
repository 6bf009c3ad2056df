//! Pausing a queue: its workers lease nothing until it is resumed.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::activity::keys;
use crate::queue::QueueName;
use crate::{Clock, Deleted, Expect, Key, Put, Records, StoreResult, with_timeout};

/// How often a worker asks whether its queue is paused.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Who paused a queue, when and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PausedQueue {
    /// The name of the operator's token.
    pub by: String,
    /// When, in milliseconds since the Unix epoch.
    pub at: u64,
    /// The operator's note.
    pub note: Option<String>,
}

/// Pauses a queue for all its workers, of all tenants. Items that are leased are finished; workers lease no more
/// within about a second. A queue that is paused stays so, with its first pause.
pub async fn pause(
    store: &dyn Records,
    clock: &dyn Clock,
    queue: &QueueName,
    by: &str,
    note: Option<&str>,
) -> StoreResult<PausedQueue> {
    let paused =
        PausedQueue { by: by.to_owned(), at: clock.now().0, note: note.map(str::to_owned) };
    let value = serde_json::to_vec(&paused).expect("a pause becomes JSON");
    match store.put(&keys::pause_record(queue), value.into(), &Expect::Absent, None).await? {
        Put::Stored { .. } => Ok(paused),
        Put::Conflict => Ok(self::paused(store, queue).await?.unwrap_or(paused)),
    }
}

/// Lets the workers of a queue lease again; whether it was paused.
pub async fn resume(store: &dyn Records, queue: &QueueName) -> StoreResult<bool> {
    let deleted = store.delete(&keys::pause_record(queue), &Expect::Any).await?;
    Ok(deleted == Deleted::Done)
}

/// Whether a queue is paused, and by whom.
pub async fn paused(store: &dyn Records, queue: &QueueName) -> StoreResult<Option<PausedQueue>> {
    let record = store.get(&keys::pause_record(queue)).await?;
    // A record that cannot be read is a pause all the same.
    Ok(record.map(|record| serde_json::from_slice(&record.value).unwrap_or_default()))
}

/// Tells a worker whether its queue is paused. The store is asked at most once a second, and a pause that cannot be read is
/// none: an outage of the store must not stop a worker for longer than itself.
pub struct QueuePause {
    store: Arc<dyn Records>,
    record: Key,
    timeout: Duration,
    is_paused: bool,
    asked_at: Option<Instant>,
}

impl QueuePause {
    /// Reads the pause of this queue.
    pub fn new(store: Arc<dyn Records>, queue: &QueueName) -> Self {
        let (record, timeout) = (keys::pause_record(queue), Duration::from_secs(1));
        Self { store, record, timeout, is_paused: false, asked_at: None }
    }

    /// Whether the queue is paused.
    pub async fn is_paused(&mut self) -> bool {
        let now = Instant::now();
        if self.asked_at.is_none_or(|at| now.duration_since(at) >= CHECK_INTERVAL) {
            self.asked_at = Some(now);
            let record = with_timeout(self.timeout, self.store.get(&self.record)).await;
            let is_paused = matches!(record, Ok(Some(_)));
            if is_paused != self.is_paused {
                tracing::info!(
                    is_paused,
                    "the queue is {}",
                    if is_paused { "paused" } else { "resumed" }
                );
            }
            self.is_paused = is_paused;
        }
        self.is_paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryStore;
    use crate::queue::{ItemOutcome, QueueItem};
    use crate::worker::{LeasedBatch, OutcomeWriter, QueueLeaser};
    use crate::{ManualClock, Queue, RuntimeClock, Tenant};

    #[tokio::test(start_paused = true)]
    async fn pause_stops_leasing_within_a_second_until_resumed() {
        let store = Arc::new(MemoryStore::new(Arc::new(RuntimeClock::default())));
        let queue = QueueName::outbox();
        let item = || QueueItem::new(&Tenant::default(), "t", "{}");
        store.enqueue(&queue, &[item(), item()]).await.unwrap();
        let leaser = QueueLeaser::new(store.clone(), queue.clone(), Duration::from_secs(30));
        let mut leaser = leaser.pausable(store.clone());
        let LeasedBatch { rows, lease, .. } = leaser.lease(1).await.unwrap();
        assert_eq!(rows.len(), 1);

        let clock = ManualClock::default();
        let first = pause(&*store, &clock, &queue, "ann", Some("broker upgrade")).await.unwrap();
        let second = pause(&*store, &clock, &queue, "bob", None).await.unwrap();
        assert_eq!(second, first, "the first pause stays");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(leaser.lease(1).await.unwrap().rows.is_empty());

        // The row in flight is finished all the same.
        let (outcomes, writer) = OutcomeWriter::new(&lease, 1);
        outcomes.send(rows[0].item.id, ItemOutcome::Ack { retention: Duration::ZERO }, ());
        drop(outcomes);
        writer.run_while_renewing(async {}).await;
        let depth = store.depth(&queue, None).await.unwrap();
        assert_eq!((depth.waiting, depth.in_flight), (1, 0));

        assert!(resume(&*store, &queue).await.unwrap());
        assert!(!resume(&*store, &queue).await.unwrap());
        assert_eq!(paused(&*store, &queue).await.unwrap(), None);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(leaser.lease(1).await.unwrap().rows.len(), 1);
    }
}
