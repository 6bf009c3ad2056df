//! The features, on a store on which things go wrong as planned, in virtual time.

mod commands;
mod documents;
mod locks;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use hapax_conformance::Faulty;
use hapax_core::memory::MemoryStore;
use hapax_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The store's clock follows the runtime's, which the tests pause: both stand still or go on
/// together, and nobody really waits.
#[derive(Debug)]
struct Virtual(Instant);

impl Clock for Virtual {
    fn now(&self) -> Timestamp {
        Timestamp(1_000_000_000_000).plus(self.0.elapsed())
    }
}

fn faulty() -> Faulty {
    Faulty::new(Arc::new(MemoryStore::new(Arc::new(Virtual(Instant::now())))))
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}
