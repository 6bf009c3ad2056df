//! The features on a store with planned faults, in virtual time.

mod commands;
mod consumers;
mod documents;
mod followers;
mod locks;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::FaultyStore;
use hapax_core::RuntimeClock;
use hapax_core::memory::MemoryStore;

fn faulty() -> FaultyStore {
    FaultyStore::new(Arc::new(MemoryStore::new(Arc::new(RuntimeClock::default()))))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
