//! The same work without hapax: no fences, no fingerprints, no owners, no answers to a lost race. This is
//! the least that the engine can do it for.

pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sqlite;

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use hapax_workload::{BenchError, BenchPlan, Measurement, Workload};

/// A value of the same length as hapax's.
const VALUE: &str = r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;
/// A token of the same length as hapax's.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A raw engine.
#[async_trait]
pub(crate) trait RawEngine: Send + Sync {
    /// Does the least that a workload needs.
    async fn measure(
        &self,
        workload: Workload,
        plan: &BenchPlan,
    ) -> Result<Measurement, BenchError>;
}

/// Keys that no other run has, of the same length as hapax's.
struct Names(u64);

impl Names {
    fn fresh() -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        Self(RUNS.fetch_add(1, Ordering::Relaxed))
    }

    fn name(&self, task: usize, turn: u64) -> String {
        format!("raw:hapax-bench:{:012}-{task}-{turn}", self.0)
    }
}

pub(crate) fn engine(error: impl std::error::Error) -> BenchError {
    BenchError::Engine(error.to_string())
}
