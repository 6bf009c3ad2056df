//! The features on a store with planned faults, in virtual time.

mod commands;
mod documents;
mod locks;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::FaultyStore;
use hapax_core::memory::MemoryStore;
use hapax_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The store's clock follows the runtime's, which the tests pause, so that no test really waits.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000_000_000).plus(self.0.elapsed())
    }
}

fn faulty() -> FaultyStore {
    FaultyStore::new(Arc::new(MemoryStore::new(Arc::new(Virtual(Instant::now())))))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
