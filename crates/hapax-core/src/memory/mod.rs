//! The store for tests and demos, and the worked example of writing a store.
//!
//! A store that can change one row atomically needs no claim logic of its own: it reads the row,
//! lets [`claim_rules`] decide, and writes the new row. What remains is to store the rows, read the
//! clock and wake the waiters. Logs and queues are in their own files.

mod log;
mod queue;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::claim_rules::{self, ClaimChange, ClaimDecision, ClaimRow};
use crate::{
    ClaimPage, ClaimQuery, ClaimRequest, ClaimView, Claimed, Claims, Clock, Deleted, Expect, Fence,
    Finding, GiveBack, Key, Oversight, Promise, Put, Record, Records, Step, Store, StoreError,
    SystemClock, Timestamp, Token, Version, WakeRegistry, Watch,
};

use self::log::{Job, PartitionChanges};
use self::queue::Items;
use crate::log::PARTITIONS;
use crate::queue::QueueName;

/// A store in the memory of this process. All data is lost when the process ends.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    tables: Arc<Mutex<Tables>>,
    clock: Arc<dyn Clock>,
    hub: WakeRegistry,
    partitions: u16,
}

#[derive(Debug, Default)]
struct Tables {
    claims: HashMap<Key, ClaimRow>,
    records: HashMap<Key, Stored>,
    jobs: HashMap<Key, Job>,
    tails: HashMap<u16, PartitionChanges>,
    queues: HashMap<QueueName, Items>,
    /// The last number of the sequence that fences, versions and queue places share. A number is
    /// never used twice.
    last: u64,
    last_epoch: u64,
}

#[derive(Debug)]
struct Stored {
    value: Bytes,
    version: Version,
    expires_at: Option<Timestamp>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock))
    }
}

impl MemoryStore {
    /// An empty store that uses this clock.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { tables: Arc::default(), clock, hub: WakeRegistry::default(), partitions: PARTITIONS }
    }

    /// Sets the number of partitions of the log, at least 1. Call it before the store is used.
    #[must_use]
    pub fn with_partitions(self, partitions: u16) -> Self {
        Self { partitions: partitions.max(1), ..self }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes an extend, settle or give-back, which differ only in the function that decides.
    fn step(
        &self,
        key: &Key,
        decide: impl FnOnce(Option<&ClaimRow>, Timestamp) -> ClaimChange,
    ) -> Step {
        let mut tables = self.tables();
        match decide(tables.claims.get(key), self.clock.now()) {
            ClaimChange::Nothing(step) => step,
            ClaimChange::Write(row) => {
                let fence = row.fence;
                tables.claims.insert(key.clone(), row);
                Step::Done(fence)
            }
            ClaimChange::Delete(fence) => {
                tables.claims.remove(key);
                Step::Done(fence)
            }
        }
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

    fn record(&self, key: &Key, now: Timestamp) -> Option<&Stored> {
        self.records.get(key).filter(|r| r.expires_at.is_none_or(|end| now < end))
    }
}

#[async_trait]
impl Claims for MemoryStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let row = match claim_rules::claim(tables.claims.get(key), ask, now) {
            ClaimDecision::Answer(answer) => return Ok(answer),
            ClaimDecision::Grant { attempt } => {
                claim_rules::granted(ask, Fence(tables.next()), attempt, now)
            }
            ClaimDecision::Regrant(row) => row,
        };
        let answer = row.grant();
        tables.claims.insert(key.clone(), row);
        Ok(answer)
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        Ok(self.step(key, |row, now| claim_rules::extend(row, token, lease, now)))
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        let step = self.step(key, |row, now| claim_rules::settle(row, token, &value, now));
        self.hub.wake(key.digest());
        Ok(step)
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        let step = self.step(key, |row, now| claim_rules::give_back(row, token, how, now));
        self.hub.wake(key.digest());
        Ok(step)
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        Ok(claim_rules::look(self.tables().claims.get(key), self.clock.now()))
    }

    fn watch(&self, key: &Key) -> Watch {
        self.hub.watch(key)
    }
}

#[async_trait]
impl Records for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let now = self.clock.now();
        Ok(self.tables().record(key, now).map(|stored| Record {
            value: stored.value.clone(),
            version: stored.version.clone(),
            expires_in: stored.expires_at.map(|end| end.since(now)),
        }))
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let current = tables.record(key, now);
        if !expect.holds(current.map(|r| &r.version)) {
            return Ok(Put::Conflict);
        }
        let created = current.is_none();
        let kept = current.and_then(|r| r.expires_at);
        let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept);
        let version = Version::new(tables.next().to_string());
        let stored = Stored { value, version: version.clone(), expires_at };
        tables.records.insert(key.clone(), stored);
        Ok(Put::Stored { version, created })
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let mut tables = self.tables();
        let Some(current) = tables.record(key, self.clock.now()) else {
            return Ok(Deleted::Missing);
        };
        if !expect.holds(Some(&current.version)) {
            return Ok(Deleted::Conflict);
        }
        tables.records.remove(key);
        Ok(Deleted::Done)
    }
}

#[async_trait]
impl Oversight for MemoryStore {
    async fn list(&self, list: &ClaimQuery) -> Result<ClaimPage, StoreError> {
        let tables = self.tables();
        let now = self.clock.now();
        // Filter before paging: `next` must not reveal a key that the query does not match.
        let mut claims: Vec<_> = tables
            .claims
            .iter()
            .filter_map(|(key, row)| claim_rules::listed(key.clone(), row, now))
            .filter(|listed| list.shows(listed))
            .map(|listed| (listed.key.canonical(), listed))
            .filter(|(name, _)| list.after.as_ref().is_none_or(|after| name > after))
            .collect();
        claims.sort_by(|a, b| a.0.cmp(&b.0));
        let more = claims.len() > list.max_claims as usize;
        claims.truncate(list.max_claims as usize);
        let next = claims.last().filter(|_| more).map(|(name, _)| name.clone());
        let claims = claims.into_iter().map(|(_, listed)| listed).collect();
        Ok(ClaimPage { claims, next })
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn ping(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(vec![Finding::warn(
            "memory.durability",
            Promise::Durable,
            "everything is kept in this process and lost with it",
            "use sqlite:, redis:// or postgres:// for anything but tests and demos",
        )])
    }

    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let mut left = u64::from(at_most);
        let mut expired = |gone: bool| {
            let take = gone && left > 0;
            left -= u64::from(take);
            take
        };
        tables.claims.retain(|_, row| !expired(row.expires_at <= now));
        tables.records.retain(|_, r| !expired(r.expires_at.is_some_and(|end| end <= now)));
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
        Ok(u64::from(at_most) - left)
    }
}
