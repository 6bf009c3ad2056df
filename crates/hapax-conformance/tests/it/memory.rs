//! The memory store passes the suite.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{
    FailoverServer, FailoverStore, LossyStore, StoreUnderTest, WallClock, WrappedStore, check,
    check_histories,
};
use hapax_core::memory::{MemoryReplica, MemoryStore};
use hapax_core::{ManualClock, Store};

use crate::cut_off::{AfterACut, CutOff};

pub(crate) struct InManualTime {
    pub(crate) store: Arc<dyn Store>,
    /// The store in memory that `store` is or wraps.
    pub(crate) memory: MemoryStore,
    pub(crate) clock: Arc<ManualClock>,
    /// How the store treats a call whose answer was lost.
    pub(crate) after_a_cut: AfterACut,
}

#[async_trait]
impl StoreUnderTest for InManualTime {
    async fn open(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn is_private(&self) -> bool {
        true
    }

    async fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn lossy(&self) -> Option<LossyStore> {
        let store = CutOff::new(self.store.clone(), self.after_a_cut);
        let connection = Arc::new(store.clone());
        Some(LossyStore { store: Arc::new(WrappedStore(store)), connection })
    }

    fn wall_clock(&self) -> Option<Arc<dyn WallClock>> {
        Some(self.clock.clone())
    }

    async fn failover(&self) -> Option<FailoverStore> {
        let replica = Mutex::new(self.memory.replica());
        let server = Arc::new(WithReplica { memory: self.memory.clone(), replica });
        Some(FailoverStore { store: self.store.clone(), server })
    }
}

struct WithReplica {
    memory: MemoryStore,
    replica: Mutex<MemoryReplica>,
}

#[async_trait]
impl FailoverServer for WithReplica {
    async fn keep(&self) {
        *self.replica.lock().unwrap() = self.memory.replica();
    }

    async fn lose(&self) {
        self.memory.fail_over_to(self.replica.lock().unwrap().clone());
    }
}

async fn memory() -> Arc<dyn StoreUnderTest> {
    let clock = Arc::new(ManualClock::default());
    let memory = MemoryStore::new(clock.clone());
    let store = Arc::new(memory.clone());
    Arc::new(InManualTime { store, memory, clock, after_a_cut: AfterACut::Fails })
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_every_law() {
    check(memory).await;
}

#[test]
fn memory_follows_the_model() {
    check_histories(memory);
}

/// Runs in real time, as servers do, because the suite must not depend on a stopped clock.
struct InRealTime(MemoryStore);

#[async_trait]
impl StoreUnderTest for InRealTime {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_every_law_in_real_time() {
    let shared = MemoryStore::default();
    check(|| async { Arc::new(InRealTime(shared.clone())) as Arc<dyn StoreUnderTest> }).await;
}
