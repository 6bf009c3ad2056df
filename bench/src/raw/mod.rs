//! The same work without hapax: no fences, no fingerprints, no owners, no answers to a lost race. This is
//! the least that the engine can do it for.

pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod sqlite;

use std::sync::Arc;

use async_trait::async_trait;
use hapax_workload::{BenchError, BenchOperation, BenchPlan, Measurement, Workload};

use crate::store_server::{Engine, POOL, StoreServer};
use crate::turns::fresh_run_id;
use postgres::RawPostgres;
use redis::RawRedis;
use sqlite::{BATCH, RawSqlite};

/// A value of the same length as hapax's.
const VALUE: &str = r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;
/// A token of the same length as hapax's.
const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// One step of a [`Workload`].
#[derive(Clone, Copy)]
pub(crate) enum RawStep {
    Claim,
    Settle,
    Release,
    /// Stores a value that is read during the whole run.
    Create,
    Read,
    /// Reads a value and replaces it.
    Update,
}

/// A raw engine.
#[async_trait]
pub(crate) trait RawEngine: Send + Sync {
    /// Does a step on these keys.
    async fn run(&self, step: RawStep, keys: &[String]) -> Result<(), BenchError>;

    /// How many keys a step has when this many tasks ask for it: more than one only where the engine
    /// has one writer, which commits them together.
    fn batch(&self, _tasks: usize) -> usize {
        1
    }
}

impl dyn RawEngine {
    /// The engine of a store's server; memory has none.
    pub(crate) async fn open(server: &StoreServer) -> anyhow::Result<Option<Arc<Self>>> {
        let url = server.url("raw");
        Ok(match server.engine() {
            Engine::Memory => None,
            Engine::Sqlite => Some(Arc::new(RawSqlite::open(&url)?)),
            Engine::Redis => Some(Arc::new(RawRedis::connect(&url).await?)),
            Engine::Postgres => Some(Arc::new(RawPostgres::connect(&url).await?)),
        })
    }
}

pub(crate) fn description(engine: Engine) -> String {
    match engine {
        Engine::Memory => "nothing to compare with".into(),
        Engine::Sqlite => format!("raw: one thread, up to {BATCH} operations in a commit"),
        Engine::Redis => "raw: SET NX PX, DEL, SET, GET over one multiplexed connection".into(),
        Engine::Postgres => {
            format!("both {POOL} connections; raw: one prepared statement, one commit each")
        }
    }
}

/// Does the least that a workload needs.
pub(crate) async fn measure(
    engine: &Arc<dyn RawEngine>,
    workload: Workload,
    plan: &BenchPlan,
) -> Result<Measurement, BenchError> {
    let (engine, batch) = (engine.clone(), engine.batch(plan.tasks));
    let work = RawWork { engine, run_id: fresh_run_id(), workload, batch };
    if matches!(workload, Workload::Replay | Workload::Record) {
        for task in 0..plan.tasks.div_ceil(batch) {
            work.engine.run(RawStep::Create, &work.keys(task, 0)).await?;
        }
    }
    measure_batches(Arc::new(work), plan).await
}

/// Measures an operation. A batch stands for the tasks that would ask for it, so one task is enough.
pub(crate) async fn measure_batches(
    operation: Arc<dyn BenchOperation>,
    plan: &BenchPlan,
) -> Result<Measurement, BenchError> {
    let tasks = if operation.batch() > 1 { 1 } else { plan.tasks };
    hapax_workload::measure(operation, &BenchPlan { tasks, ..plan.clone() }).await
}

struct RawWork {
    engine: Arc<dyn RawEngine>,
    run_id: String,
    workload: Workload,
    batch: usize,
}

impl RawWork {
    /// Keys that no other run has, of the same length as hapax's.
    fn keys(&self, task: usize, turn: u64) -> Vec<String> {
        let tasks = task * self.batch..(task + 1) * self.batch;
        tasks.map(|task| format!("raw:hapax-bench:{}-{task}-{turn}", self.run_id)).collect()
    }
}

#[async_trait]
impl BenchOperation for RawWork {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let (turn, steps): (_, &[RawStep]) = match self.workload {
            Workload::Command => (turn, &[RawStep::Claim, RawStep::Settle]),
            Workload::Lock => (turn, &[RawStep::Claim, RawStep::Release]),
            Workload::Replay => (0, &[RawStep::Read]),
            Workload::Record => (0, &[RawStep::Update]),
        };
        let keys = self.keys(task, turn);
        for step in steps {
            self.engine.run(*step, &keys).await?;
        }
        Ok(())
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}

pub(crate) fn engine(error: impl std::error::Error) -> BenchError {
    BenchError::Engine(error.to_string())
}

/// Checks that a statement changed the one row that it was for.
fn one_row<E: std::error::Error>(changed: Result<u64, E>) -> Result<(), BenchError> {
    match changed.map_err(engine)? {
        1 => Ok(()),
        _ => Err(BenchError::Unexpected("a row was missing, or a new one was there before")),
    }
}
