//! One suite defines what a hapax store is: every store passes all of it, none has laws of its own.
//!
//! To run it on your own store, implement [`Subject`] and call [`check`] and [`check_histories`]
//! from a test:
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hapax_conformance::{Subject, check};
//! use hapax_core::{ManualClock, Store, memory::MemoryStore};
//!
//! struct Memory { store: MemoryStore, clock: Arc<ManualClock> }
//!
//! #[async_trait::async_trait]
//! impl Subject for Memory {
//!     async fn open(&self) -> Arc<dyn Store> { Arc::new(self.store.clone()) }
//!     async fn pass(&self, time: Duration) { self.clock.advance(time) }
//! }
//!
//! let runtime = tokio::runtime::Runtime::new().unwrap();
//! runtime.block_on(check(|| async {
//!     let clock = Arc::new(ManualClock::default());
//!     Arc::new(Memory { store: MemoryStore::new(clock.clone()), clock }) as Arc<dyn Subject>
//! }));
//! ```

mod claims;
mod fault;
mod history;
mod log;
mod oversight;
mod queue;
mod records;
mod scene;
mod subject;

pub use fault::{Fault, Faulty, Part};
pub use history::check_histories;
pub use subject::{Subject, check, scale};
