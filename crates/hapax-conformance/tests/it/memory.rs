//! The memory store passes the suite.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{LossyStore, StoreUnderTest, WrappedStore, check, check_histories};
use hapax_core::memory::MemoryStore;
use hapax_core::{ManualClock, Store};

use crate::cut_off::{AfterACut, CutOff};

pub(crate) struct InManualTime {
    pub(crate) store: Arc<dyn Store>,
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
}

async fn memory() -> Arc<dyn StoreUnderTest> {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    Arc::new(InManualTime { store, clock, after_a_cut: AfterACut::Fails })
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
