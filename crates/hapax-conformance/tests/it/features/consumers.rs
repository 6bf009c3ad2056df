use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use async_trait::async_trait;
use hapax_conformance::{StoreWrapper, WrappedStore};
use hapax_core::bus::consume::{EventDelivery, EventOutcome, HandlerError};
use hapax_core::bus::{Bus, NewEvent};
use hapax_core::memory::MemoryStore;
use hapax_core::{Key, Record, Records, RuntimeClock, Store, StoreError, StoreResult};
use tokio::time::{Instant, sleep};

use crate::features::secs;

/// Fails so many times to read a group's progress in a partition.
struct FailingLoads {
    store: MemoryStore,
    failures: AtomicI32,
}

#[async_trait]
impl StoreWrapper for FailingLoads {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        if key.name().contains(":partition:") && self.failures.fetch_sub(1, Ordering::SeqCst) > 0 {
            return Err(StoreError::Timeout { timeout: secs(2) });
        }
        self.store.get(key).await
    }
}

#[tokio::test(start_paused = true)]
async fn fault_16_partition_is_free_after_a_failed_load() {
    // Many more jobs than partitions, so that those whose progress could not be read have some.
    const JOBS: usize = 2000;
    let store = MemoryStore::new(Arc::new(RuntimeClock::default()));
    let failures = AtomicI32::new(16);
    let bus = Bus::new(Arc::new(WrappedStore(FailingLoads { store, failures })));
    for job in 0..JOBS {
        let event = NewEvent::new("scan", format!("job-{job}"), "vision", 1);
        let _ = bus.publish(&event).await.unwrap();
    }
    let handled = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let member = bus.consume("mailing", {
        let handled = handled.clone();
        move |_: EventDelivery| {
            handled.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, HandlerError>(EventOutcome::Done) }
        }
    });
    let member = member.unwrap();
    while handled.load(Ordering::SeqCst) < JOBS {
        sleep(secs(1)).await;
    }
    // The second heartbeat, after 5 s, takes them; a lease that was kept would last 15 s.
    assert!(start.elapsed() < secs(12), "{:?}", start.elapsed());
    member.stop().await;
}
