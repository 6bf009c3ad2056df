//! The store for tests and demos, and the worked example of writing a store.
//!
//! A store that can change one row atomically needs no claim logic of its own: it reads the row,
//! lets [`claim_rules`](crate::claim_rules) decide, and writes the new row. What remains is to store
//! the rows, read the clock and wake the waiters. Each primitive has its own file, as in the other
//! stores.

mod claims;
mod failover;
mod log;
mod oversight;
mod queue;
mod records;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use self::claims::ClaimParts;
pub use self::failover::MemoryReplica;
use self::log::{Job, PartitionChanges};
use self::queue::Items;
use self::records::StoredRecord;
use crate::log::PARTITIONS;
use crate::queue::QueueName;
use crate::{
    Clock, Finding, Key, MonotonicClock, Promise, SteadyClock, Store, StoreResult, Swept,
    WakeRegistry,
};

/// A store in the memory of this process. All data is lost when the process ends.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    claims: Arc<ClaimParts>,
    tables: Arc<Mutex<Tables>>,
    sequence: Arc<Sequence>,
    clock: Arc<dyn Clock>,
    wakes: WakeRegistry,
    partitions: u16,
}

#[derive(Clone, Debug, Default)]
struct Tables {
    records: HashMap<Key, StoredRecord>,
    jobs: HashMap<Key, Job>,
    tails: HashMap<u16, PartitionChanges>,
    queues: HashMap<QueueName, Items>,
    last_epoch: u64,
}

/// The sequence that fences, versions and queue places share. A number is never used twice.
#[derive(Debug, Default)]
struct Sequence(AtomicU64);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SteadyClock::default()))
    }
}

impl MemoryStore {
    /// An empty store that uses this clock. Where the clock goes back, the store's time stands still.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let (claims, tables, sequence, wakes) = Default::default();
        let clock = Arc::new(MonotonicClock::new(clock));
        Self { claims, tables, sequence, clock, wakes, partitions: PARTITIONS }
    }

    /// Sets the number of partitions of the log, at least 1. Call it before the store is used.
    #[must_use]
    pub fn with_partitions(self, partitions: u16) -> Self {
        Self { partitions: partitions.max(1), ..self }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sequence {
    fn next(&self) -> u64 {
        self.next_of(1)
    }

    /// Reserves `count` consecutive numbers and returns the first.
    fn next_of(&self, count: usize) -> u64 {
        self.0.fetch_add(count as u64, Ordering::Relaxed) + 1
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn ping(&self) -> StoreResult<()> {
        Ok(())
    }

    async fn examine(&self) -> StoreResult<Vec<Finding>> {
        Ok(vec![Finding::warn(
            "memory.durability",
            Promise::Durable,
            "everything is kept in this process and lost with it",
            "use sqlite:, redis:// or postgres:// for anything but tests and demos",
        )])
    }

    async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
        let now = self.clock.now();
        let mut left = u64::from(at_most);
        let mut expired = |gone: bool| {
            let take = gone && left > 0;
            left -= u64::from(take);
            take
        };
        for part in 0..ClaimParts::COUNT {
            self.claims.sweep(part, |row| expired(row.expires_at <= now));
            // A walk over all claims takes a while, and other tasks wait for this thread.
            tokio::task::yield_now().await;
        }
        let mut tables = self.tables();
        tables.records.retain(|_, record| !expired(record.is_expired(now)));
        let jobs: Vec<_> = tables
            .jobs
            .iter()
            .filter(|(_, j)| expired(j.expires_at <= now))
            .map(|(k, _)| k.clone())
            .collect();
        for job in jobs {
            tables.forget(&job, self.partition(&job));
        }
        for items in tables.queues.values_mut() {
            items.done.retain(|_, done| !expired(done.until <= now));
        }
        Ok(Swept { count: u64::from(at_most) - left, more: left == 0 })
    }
}
