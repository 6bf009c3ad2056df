use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::{
    ClaimRequest, Claimed, Expect, GiveBack, Key, OnUnknown, Put, Step, Store, Tenant, Token,
    Version,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::{Failure, Measured, Operation, Plan, Span, measure};

/// The tenant that all keys of a measurement belong to: they never meet anybody else's.
pub const TENANT: &str = "hapax-bench";

/// What is settled and stored: the size of a small answer.
const VALUE: &str = r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;
const LEASE: Duration = Duration::from_secs(30);
/// Everything is forgotten this long after it was made, so that nothing piles up.
const RETENTION: Duration = Duration::from_secs(1);
/// For how long after its measurement a value to replay must still be there.
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

    /// What one operation consists of.
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
pub async fn on_store(
    store: Arc<dyn Store>,
    workload: Workload,
    plan: &Plan,
) -> Result<Measured, Failure> {
    let keys = Keys::fresh();
    match workload {
        Workload::Command => measure(Arc::new(CommandOnce { store, keys }), plan).await,
        Workload::Lock => measure(Arc::new(LockOnce { store, keys }), plan).await,
        Workload::Replay => {
            settle_all(&store, &keys, plan).await?;
            measure(Arc::new(ReplayOnce { store, keys }), plan).await
        }
        Workload::Record => {
            let mut slots = Vec::new();
            for task in 0..plan.tasks {
                let key = keys.record(task)?;
                let version = put(&*store, &key, &Expect::Absent).await?;
                slots.push(Mutex::new(Slot { key, version }));
            }
            let operation = Arc::new(RecordOnce { store, slots });
            let measured = measure(operation.clone(), plan).await;
            for slot in &operation.slots {
                // Should it fail, the TTL will do it.
                let key = slot.lock().await.key.clone();
                let _ = operation.store.delete(&key, &Expect::Any).await;
            }
            measured
        }
    }
}

fn length_of(span: Span) -> Duration {
    match span {
        Span::Time(time) => time,
        // Nobody knows; a minute is for those who count.
        Span::Count(_) => Duration::from_secs(60),
    }
}

/// Waits until everything that measurements left behind has expired, and has the store forget it.
/// Returns how much that was.
pub async fn clean_up(store: &dyn Store) -> Result<u64, Failure> {
    const BATCH: u32 = 1_000;
    tokio::time::sleep(SLACK).await;
    let mut swept = 0;
    loop {
        let some = store.sweep(BATCH).await?;
        swept += some;
        if some < u64::from(BATCH) {
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

    fn command(&self, task: usize, turn: u64) -> Result<Key, Failure> {
        Key::command(&self.tenant, "bench", &self.name(task, turn)).map_err(invalid)
    }

    fn lock(&self, task: usize, turn: u64) -> Result<Key, Failure> {
        Key::lock(&self.tenant, &self.name(task, turn)).map_err(invalid)
    }

    fn record(&self, task: usize) -> Result<Key, Failure> {
        Key::record(&self.tenant, &self.name(task, 0)).map_err(invalid)
    }
}

fn invalid(error: hapax_core::InvalidKey) -> Failure {
    Failure::Engine(error.to_string())
}

/// All at once, so that the first has not expired when the last is there.
async fn settle_all(store: &Arc<dyn Store>, keys: &Keys, plan: &Plan) -> Result<(), Failure> {
    let retention = SLACK + plan.warm_up + length_of(plan.span);
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let (store, key) = (store.clone(), keys.command(task, 0)?);
        tasks.spawn(async move { settle_one(&*store, &key, retention).await });
    }
    tasks.join_all().await.into_iter().collect()
}

async fn settle_one(store: &dyn Store, key: &Key, retention: Duration) -> Result<(), Failure> {
    let ask = ClaimRequest::new(LEASE).retention(retention);
    let Claimed::Granted { ticket, .. } = store.claim(key, &ask).await? else {
        return Err(Failure::Unexpected("a fresh key was not granted"));
    };
    match store.settle(key, &ticket.token, VALUE.into()).await? {
        Step::Done(_) => Ok(()),
        Step::Lost => Err(Failure::Unexpected("a fresh claim was lost")),
    }
}

async fn put(store: &dyn Store, key: &Key, expect: &Expect) -> Result<Version, Failure> {
    match store.put(key, VALUE.into(), expect, Some(Duration::from_secs(600))).await? {
        Put::Stored { version, .. } => Ok(version),
        Put::Conflict => Err(Failure::Unexpected("a record of one's own had a conflict")),
    }
}

struct CommandOnce {
    store: Arc<dyn Store>,
    keys: Keys,
}

#[async_trait]
impl Operation for CommandOnce {
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure> {
        settle_one(&*self.store, &self.keys.command(task, turn)?, RETENTION).await
    }
}

struct ReplayOnce {
    store: Arc<dyn Store>,
    keys: Keys,
}

#[async_trait]
impl Operation for ReplayOnce {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), Failure> {
        let ask = ClaimRequest::new(LEASE).retention(RETENTION);
        match self.store.claim(&self.keys.command(task, 0)?, &ask).await? {
            Claimed::Settled { .. } => Ok(()),
            _ => Err(Failure::Unexpected("a settled key was not answered with its value")),
        }
    }
}

struct LockOnce {
    store: Arc<dyn Store>,
    keys: Keys,
}

#[async_trait]
impl Operation for LockOnce {
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure> {
        let key = self.keys.lock(task, turn)?;
        let ask = ClaimRequest::new(LEASE).on_unknown(OnUnknown::TakeOver);
        let Claimed::Granted { ticket, .. } = self.store.claim(&key, &ask).await? else {
            return Err(Failure::Unexpected("a free lock was not granted"));
        };
        match self.store.give_back(&key, &ticket.token, GiveBack::Forget).await? {
            Step::Done(_) => Ok(()),
            Step::Lost => Err(Failure::Unexpected("a lock was lost within its lease")),
        }
    }
}

struct Slot {
    key: Key,
    version: Version,
}

struct RecordOnce {
    store: Arc<dyn Store>,
    /// One for each task, which alone locks it.
    slots: Vec<Mutex<Slot>>,
}

#[async_trait]
impl Operation for RecordOnce {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), Failure> {
        let mut slot = self.slots[task].lock().await;
        let Some(record) = self.store.get(&slot.key).await? else {
            return Err(Failure::Unexpected("a record of one's own is gone"));
        };
        if record.version != slot.version {
            return Err(Failure::Unexpected("a record changed by itself"));
        }
        slot.version = put(&*self.store, &slot.key, &Expect::Version(record.version)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hapax_core::ManualClock;
    use hapax_core::memory::MemoryStore;

    #[tokio::test]
    async fn every_workload_does_what_was_planned() {
        for workload in Workload::ALL {
            let store = Arc::new(MemoryStore::default());
            let plan = Plan::new(8, Span::Count(200));
            let measured = on_store(store, workload, &plan).await.unwrap();
            assert_eq!(measured.operations, 200, "{}", workload.name());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_behind() {
        let clock = Arc::new(ManualClock::default());
        let store = Arc::new(MemoryStore::new(clock.clone()));
        let span = Span::Time(Duration::ZERO);
        for workload in Workload::ALL {
            on_store(store.clone(), workload, &Plan::new(8, span)).await.unwrap();
            on_store(store.clone(), workload, &Plan::new(8, Span::Count(50))).await.unwrap();
        }
        clock.advance(SLACK + Duration::from_secs(60));
        assert!(clean_up(&*store).await.unwrap() > 0);
        assert_eq!(store.sweep(1).await.unwrap(), 0);
        clock.advance(Duration::from_secs(1_000));
        assert_eq!(store.sweep(1).await.unwrap(), 0, "records were deleted, not left to their TTL");
    }
}
