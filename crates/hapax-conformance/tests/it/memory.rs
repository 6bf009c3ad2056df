//! The memory store passes the suite, and the suite notices a store that breaks a law.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::{Subject, check, check_histories};
use hapax_core::memory::MemoryStore;
use hapax_core::{ManualClock, Store};

struct Memory {
    store: MemoryStore,
    clock: Arc<ManualClock>,
}

#[async_trait]
impl Subject for Memory {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.store.clone())
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

async fn memory() -> Arc<dyn Subject> {
    let clock = Arc::new(ManualClock::default());
    Arc::new(Memory { store: MemoryStore::new(clock.clone()), clock })
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_every_law() {
    check(memory).await;
}

#[test]
fn memory_follows_the_model() {
    check_histories(memory);
}

/// As servers with a clock of their own are checked: nothing in the suite depends on time standing
/// still.
struct InRealTime(MemoryStore);

#[async_trait]
impl Subject for InRealTime {
    async fn open(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_keeps_every_law_in_real_time() {
    let shared = MemoryStore::default();
    check(|| async { Arc::new(InRealTime(shared.clone())) as Arc<dyn Subject> }).await;
}
