//! Workloads, measured on any store.
//!
//! A [`Workload`] is one thing that hapax is used for. [`on_store`] runs it on a store with many
//! tasks at once and says how many were done, how long each took and what CPU time they cost;
//! [`measure`] does the same for any other [`Operation`], so that a raw engine can stand beside it.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hapax_bench::{Plan, Span, Workload, on_store};
//! use hapax_core::memory::MemoryStore;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax_bench::Failure> {
//! let plan = Plan::new(4, Span::Count(100));
//! let measured = on_store(Arc::new(MemoryStore::default()), Workload::Lock, &plan).await?;
//! assert_eq!(measured.operations, 100);
//! # Ok(()) }
//! ```

mod cpu;
mod measure;
mod measured;
mod memory;
mod table;
mod workload;

pub use cpu::{Processes, own_cpu_time};
pub use measure::{Operation, Plan, Span, measure};
pub use measured::Measured;
pub use table::{Table, cell};
pub use workload::{TENANT, Workload, clean_up, on_store};

/// Why a measurement has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The store, or the raw engine, failed.
    #[error("{0}")]
    Engine(String),
    /// It answered something that this workload can never get from a store that keeps its laws.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
}

impl From<hapax_core::StoreError> for Failure {
    fn from(error: hapax_core::StoreError) -> Self {
        Self::Engine(error.to_string())
    }
}
