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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

pub use self::failover::MemoryReplica;
use self::log::{Job, PartitionChanges};
use self::queue::Items;
use self::records::StoredRecord;
use crate::claim_rules::ClaimRow;
use crate::log::PARTITIONS;
use crate::queue::QueueName;
use crate::{
    Clock, Finding, Key, MonotonicClock, Promise, SteadyClock, Store, StoreResult, Swept,
    WakeRegistry,
};

/// A store in the memory of this process. All data is lost when the process ends.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    clock: Arc<dyn Clock>,
    wakes: WakeRegistry,
    partitions: u16,
}

#[derive(Clone, Debug, Default)]
struct Tables {
    claims: HashMap<Key, ClaimRow>,
    records: HashMap<Key, StoredRecord>,
    jobs: HashMap<Key, Job>,
    tails: HashMap<u16, PartitionChanges>,
    queues: HashMap<QueueName, Items>,
    /// The last number of the sequence that fences, versions and queue places share. A number is
    /// never used twice.
    last: u64,
    last_epoch: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SteadyClock::default()))
    }
}

impl MemoryStore {
    /// An empty store that uses this clock. Where the clock goes back, the store's time stands still.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            tables: Arc::default(),
            clock: Arc::new(MonotonicClock::new(clock)),
            wakes: WakeRegistry::default(),
            partitions: PARTITIONS,
        }
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

impl Tables {
    fn next(&mut self) -> u64 {
        self.next_of(1)
    }

    /// Reserves `count` consecutive numbers and returns the first.
    fn next_of(&mut self, count: usize) -> u64 {
        let first = self.last + 1;
        self.last += count as u64;
        first
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
        let mut tables = self.tables();
        let now = self.clock.now();
        let mut left = u64::from(at_most);
        let mut expired = |gone: bool| {
            let take = gone && left > 0;
            left -= u64::from(take);
            take
        };
        tables.claims.retain(|_, row| !expired(row.expires_at <= now));
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
