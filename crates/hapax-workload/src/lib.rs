//! Workloads, measured on any store.
//!
//! A [`Workload`] is one use of hapax. [`measure_on_store`] runs it on a store with many tasks at once and
//! returns how many operations were done, how long each took and their CPU time; [`measure`] does the same
//! for any other [`BenchOperation`], such as a raw engine's.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hapax_workload::{BenchPlan, BenchSpan, Workload, measure_on_store};
//! use hapax_core::memory::MemoryStore;
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax_workload::BenchError> {
//! let plan = BenchPlan::new(4, BenchSpan::Count(100));
//! let measured = measure_on_store(Arc::new(MemoryStore::default()), Workload::Lock, &plan).await?;
//! assert_eq!(measured.operations, 100);
//! # Ok(()) }
//! ```

mod measure;
mod process_group;
mod table;
mod workload;

pub use measure::{BenchOperation, BenchPlan, BenchSpan, Measurement, measure, measure_work};
pub use process_group::{ProcessGroup, own_cpu_time};
pub use table::{MarkdownTable, cell};
pub use workload::{TENANT, Workload, clean_up, measure_on_store};

/// Why a measurement has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The store, or the raw engine, failed.
    #[error("{0}")]
    Engine(String),
    /// The store gave an answer that breaks its laws.
    #[error("unexpected answer: {0}")]
    Unexpected(&'static str),
}

impl From<hapax_core::StoreError> for BenchError {
    fn from(error: hapax_core::StoreError) -> Self {
        Self::Engine(error.to_string())
    }
}
