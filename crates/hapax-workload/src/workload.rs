use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::{
    ClaimRequest, Claimed, Expect, GiveBack, Key, OnUnknown, Operation, Put, Step, Store, Tenant,
    Token, Version,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::{BenchError, BenchOperation, BenchPlan, Measurement, measure};

/// The tenant of all keys of a measurement, so that they never meet other keys.
pub const TENANT: &str = "hapax-bench";

/// The stored value, of the size of a small response.
const VALUE: &str = r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;
const LEASE: Duration = Duration::from_secs(30);
/// A short retention, so that nothing piles up.
const RETENTION: Duration = Duration::from_secs(1);
/// How long after its measurement a value to replay must still exist.
const SLACK: Duration = Duration::from_secs(3);

/// One thing that hapax is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// A new command: claim it, settle it with the answer.
    Command,
    /// A retried command: the claim of a settled key, which is answered with the value.
    Replay,
    /// A lock: take it, release it.
    Lock,
    /// A record: read it, write it where its version is still the one that was read.
    Record,
}

impl Workload {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Command, Self::Replay, Self::Lock, Self::Record];

    /// The store calls of one operation.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "claim + settle",
            Self::Replay => "replay (claim of a settled key)",
            Self::Lock => "lock + release",
            Self::Record => "get + put (version)",
        }
    }
}

/// Measures a workload on a store.
pub async fn measure_on_store(
    store: Arc<dyn Store>,
    workload: Workload,
    plan: &BenchPlan,
) -> Result<Measurement, BenchError> {
    let mut operation = StoreOperation { store, keys: Keys::fresh(), workload, slots: Vec::new() };
    operation.prepare(plan).await?;
    let operation = Arc::new(operation);
    let measured = measure(operation.clone(), plan).await;
    for slot in &operation.slots {
        // Ignore a failure: the TTL removes the record, too.
        let _ = operation.store.delete(&slot.lock().await.key, &Expect::Any).await;
    }
    measured
}

/// Waits until the keys of earlier measurements have expired, and sweeps them.
/// Returns how many there were.
pub async fn clean_up(store: &dyn Store) -> Result<u64, BenchError> {
    const BATCH: u32 = 1_000;
    tokio::time::sleep(SLACK).await;
    let mut swept = 0;
    loop {
        let batch = store.sweep(BATCH).await?;
        swept += batch.count;
        if !batch.more {
            return Ok(swept);
        }
    }
}

/// Keys that no other run has.
struct Keys {
    run: String,
    tenant: Tenant,
}

impl Keys {
    fn fresh() -> Self {
        let run = Token::random().as_str()[..12].to_owned();
        Self { run, tenant: Tenant::new(TENANT).expect("it is printable and short") }
    }

    fn name(&self, task: usize, turn: u64) -> String {
        format!("{}-{task}-{turn}", self.run)
    }

    fn command(&self, task: usize, turn: u64) -> Result<Key, BenchError> {
        Key::command(&self.tenant, Operation("bench"), &self.name(task, turn)).map_err(invalid)
    }

    fn lock(&self, task: usize, turn: u64) -> Result<Key, BenchError> {
        Key::lock(&self.tenant, &self.name(task, turn)).map_err(invalid)
    }

    fn record(&self, task: usize) -> Result<Key, BenchError> {
        Key::record(&self.tenant, &self.name(task, 0)).map_err(invalid)
    }
}

fn invalid(error: hapax_core::InvalidKey) -> BenchError {
    BenchError::Engine(error.to_string())
}

async fn settle_one(store: &dyn Store, key: &Key, retention: Duration) -> Result<(), BenchError> {
    let ask = ClaimRequest::new(LEASE).retention(retention);
    let Claimed::Granted { ticket, .. } = store.claim(key, &ask).await? else {
        return Err(BenchError::Unexpected("a fresh key was not granted"));
    };
    match store.settle(key, &ticket.token, VALUE.into()).await? {
        Step::Done(_) => Ok(()),
        Step::Lost => Err(BenchError::Unexpected("a fresh claim was lost")),
    }
}

async fn put(store: &dyn Store, key: &Key, expect: &Expect) -> Result<Version, BenchError> {
    match store.put(key, VALUE.into(), expect, Some(Duration::from_secs(600))).await? {
        Put::Stored { version, .. } => Ok(version),
        Put::Conflict => Err(BenchError::Unexpected("a record of one's own had a conflict")),
    }
}

/// One operation of a workload.
struct StoreOperation {
    store: Arc<dyn Store>,
    keys: Keys,
    workload: Workload,
    /// The record of each task, so that the lock is never contended.
    slots: Vec<Mutex<Slot>>,
}

struct Slot {
    key: Key,
    version: Version,
}

impl StoreOperation {
    /// Stores the answers to replay, or the records.
    async fn prepare(&mut self, plan: &BenchPlan) -> Result<(), BenchError> {
        let mut settling = JoinSet::new();
        for task in 0..plan.tasks {
            match self.workload {
                Workload::Command | Workload::Lock => {}
                // All at once, so that the first has not expired when the last is settled.
                Workload::Replay => {
                    let (store, key) = (self.store.clone(), self.keys.command(task, 0)?);
                    let retention = SLACK + plan.warm_up + plan.span.expected_time();
                    settling.spawn(async move { settle_one(&*store, &key, retention).await });
                }
                Workload::Record => {
                    let key = self.keys.record(task)?;
                    let version = put(&*self.store, &key, &Expect::Absent).await?;
                    self.slots.push(Mutex::new(Slot { key, version }));
                }
            }
        }
        settling.join_all().await.into_iter().collect()
    }

    async fn replay(&self, task: usize) -> Result<(), BenchError> {
        let ask = ClaimRequest::new(LEASE).retention(RETENTION);
        match self.store.claim(&self.keys.command(task, 0)?, &ask).await? {
            Claimed::Settled { .. } => Ok(()),
            _ => Err(BenchError::Unexpected("a settled key was not answered with its value")),
        }
    }

    async fn lock(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let key = self.keys.lock(task, turn)?;
        let ask = ClaimRequest::new(LEASE).on_unknown(OnUnknown::TakeOver);
        let Claimed::Granted { ticket, .. } = self.store.claim(&key, &ask).await? else {
            return Err(BenchError::Unexpected("a free lock was not granted"));
        };
        match self.store.give_back(&key, &ticket.token, GiveBack::Forget).await? {
            Step::Done(_) => Ok(()),
            Step::Lost => Err(BenchError::Unexpected("a lock was lost within its lease")),
        }
    }

    async fn read_and_write(&self, slot: &mut Slot) -> Result<(), BenchError> {
        let Some(record) = self.store.get(&slot.key).await? else {
            return Err(BenchError::Unexpected("a record of one's own is gone"));
        };
        if record.version != slot.version {
            return Err(BenchError::Unexpected("a record changed by itself"));
        }
        slot.version = put(&*self.store, &slot.key, &Expect::Version(record.version)).await?;
        Ok(())
    }
}

#[async_trait]
impl BenchOperation for StoreOperation {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match self.workload {
            Workload::Command => {
                settle_one(&*self.store, &self.keys.command(task, turn)?, RETENTION).await
            }
            Workload::Replay => self.replay(task).await,
            Workload::Lock => self.lock(task, turn).await,
            Workload::Record => self.read_and_write(&mut *self.slots[task].lock().await).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BenchSpan;
    use hapax_core::ManualClock;
    use hapax_core::memory::MemoryStore;

    #[tokio::test]
    async fn workload_does_the_planned_operations() {
        for workload in Workload::ALL {
            let store = Arc::new(MemoryStore::default());
            let plan = BenchPlan::new(8, BenchSpan::Count(200));
            let measured = measure_on_store(store, workload, &plan).await.unwrap();
            assert_eq!(measured.operations, 200, "{}", workload.name());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn workload_leaves_nothing_behind() {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let span = BenchSpan::Time(Duration::ZERO);
        for workload in Workload::ALL {
            measure_on_store(store.clone(), workload, &BenchPlan::new(8, span)).await.unwrap();
            measure_on_store(store.clone(), workload, &BenchPlan::new(8, BenchSpan::Count(50)))
                .await
                .unwrap();
        }
        clock.advance(SLACK + Duration::from_secs(60));
        assert!(clean_up(&*store).await.unwrap() > 0);
        assert_eq!(store.sweep(1).await.unwrap().count, 0);
        clock.advance(Duration::from_secs(1_000));
        let left = store.sweep(1).await.unwrap().count;
        assert_eq!(left, 0, "records were deleted, not left to their TTL");
    }
}
