//! The conformance suite, which every hapax store must pass. Each law is one function, named by the
//! sentence that it proves.
//!
//! To run the suite on your own store, implement [`StoreUnderTest`] and call [`check`] and
//! [`check_histories`] from a test:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hapax_conformance::{StoreUnderTest, check};
//! use hapax_core::{ManualClock, Store, memory::MemoryStore};
//!
//! struct Memory { store: MemoryStore, clock: Arc<ManualClock> }
//!
//! #[async_trait::async_trait]
//! impl StoreUnderTest for Memory {
//!     async fn open(&self) -> Arc<dyn Store> { Arc::new(self.store.clone()) }
//!     async fn advance(&self, time: Duration) { self.clock.advance(time) }
//! }
//!
//! let runtime = tokio::runtime::Runtime::new().unwrap();
//! runtime.block_on(check(|| async {
//!     let clock = Arc::new(ManualClock::default());
//!     Arc::new(Memory { store: MemoryStore::new(clock.clone()), clock }) as Arc<dyn StoreUnderTest>
//! }));
//! ```
//!
//! Some laws need more of the test than a clock that advances: a connection that loses answers, a clock that
//! goes back, a server that loses writes. Each runs where [`StoreUnderTest`] offers that, and `check` prints which
//! ones did not run.

mod claims;
mod clock_steps;
mod context;
mod counting_store;
mod faulty_store;
mod history;
mod log;
mod lost_answers;
mod oversight;
mod queue;
mod records;
mod suite;

pub use clock_steps::WallClock;
pub use counting_store::{AttachCounter, CountingStore};
pub use faulty_store::{Fault, FaultInjector, FaultyStore};
pub use hapax_core::wrapped_store::{StorePart, StoreWrapper, WrappedStore};
pub use history::check_histories;
pub use log::{FailoverServer, FailoverStore};
pub use lost_answers::{LossyConnection, LossyStore};
pub use suite::{StoreUnderTest, check, check_only, scale};
