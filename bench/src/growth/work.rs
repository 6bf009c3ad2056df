//! The operations that are measured in a store with many keys.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::{ClaimRequest, Claimed, GiveBack, Key, OnUnknown, Step, Store};
use hapax_workload::{BenchError, BenchOperation, BenchPlan, BenchSpan, Measurement, measure};

use super::keys::{KeyStage, command_key, lock_key, scattered, scattered_name};
use crate::progress;
use crate::store_server::StoreServer;
use crate::turns::fresh_run_id;

/// The tasks of every measurement.
pub(super) const TASKS: usize = 64;
/// Each line is measured this often; the run with the median rate counts.
const ROUNDS: usize = 3;
pub(super) const WARM_UP: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_secs(30);
/// So long that nothing of a run expires in it.
pub(super) const RETENTION: Duration = Duration::from_secs(86_400);
/// The stored value, of the size of a small response.
pub(super) const VALUE: &str =
    r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;

/// One use of a store with many keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrowthWork {
    /// A new command, somewhere among the keys.
    FirstRun,
    /// A claim of any key that was filled in.
    Replay,
    /// A lock, somewhere among the keys.
    Lock,
}

impl GrowthWork {
    pub(super) const ALL: [Self; 3] = [Self::Replay, Self::Lock, Self::FirstRun];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FirstRun => "claim + settle",
            Self::Replay => "replay of any key",
            Self::Lock => "lock + release",
        }
    }
}

struct GrowthOperation {
    store: Arc<dyn Store>,
    run_id: String,
    work: GrowthWork,
    filled: KeyStage,
}

#[async_trait]
impl BenchOperation for GrowthOperation {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let name = || scattered_name(&self.run_id, task, turn);
        match self.work {
            GrowthWork::FirstRun => settle(&*self.store, &command_key(&name())?, RETENTION).await,
            GrowthWork::Replay => {
                let nth = scattered(task, turn) % self.filled.count;
                check_filled(&*self.store, &self.filled.key(nth)?).await
            }
            GrowthWork::Lock => lock(&*self.store, &lock_key(&name())?).await,
        }
    }
}

/// Claims a new key and settles it.
pub(super) async fn settle(
    store: &dyn Store,
    key: &Key,
    retention: Duration,
) -> Result<(), BenchError> {
    let ask = ClaimRequest::new(LEASE).retention(retention);
    let Claimed::Granted { ticket, .. } = store.claim(key, &ask).await? else {
        return Err(BenchError::Unexpected("a fresh key was not granted"));
    };
    match store.settle(key, &ticket.token, VALUE.into()).await? {
        Step::Done(_) => Ok(()),
        Step::Lost => Err(BenchError::Unexpected("a fresh claim was lost")),
    }
}

/// Claims a key that was filled in: it must be answered with its value.
pub(super) async fn check_filled(store: &dyn Store, key: &Key) -> Result<(), BenchError> {
    let ask = ClaimRequest::new(LEASE).retention(RETENTION);
    match store.claim(key, &ask).await? {
        Claimed::Settled { value, .. } if value == VALUE => Ok(()),
        _ => Err(BenchError::Unexpected("a filled key is not as hapax would have written it")),
    }
}

async fn lock(store: &dyn Store, key: &Key) -> Result<(), BenchError> {
    let ask = ClaimRequest::new(LEASE).on_unknown(OnUnknown::TakeOver);
    let Claimed::Granted { ticket, .. } = store.claim(key, &ask).await? else {
        return Err(BenchError::Unexpected("a free lock was not granted"));
    };
    match store.give_back(key, &ticket.token, GiveBack::Forget).await? {
        Step::Done(_) => Ok(()),
        Step::Lost => Err(BenchError::Unexpected("a lock was lost within its lease")),
    }
}

/// Measures once.
pub(super) async fn measure_once(
    server: &StoreServer,
    store: &Arc<dyn Store>,
    work: GrowthWork,
    filled: KeyStage,
    time: Duration,
) -> Result<Measurement, BenchError> {
    let operation =
        Arc::new(GrowthOperation { store: store.clone(), run_id: fresh_run_id(), work, filled });
    let plan =
        BenchPlan::new(TASKS, BenchSpan::Time(time)).warm_up(WARM_UP).servers([server.processes()]);
    let measured = measure(operation, &plan).await;
    progress();
    measured
}

/// Measures several times, and returns the run with the median rate: on a shared machine one run may
/// have been disturbed. `once` measures for the time that it is given.
pub(super) async fn median_of_runs(
    time: Duration,
    once: impl AsyncFn(Duration) -> Result<Measurement, BenchError>,
) -> Result<Measurement, BenchError> {
    let mut runs = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        runs.push(once(time / ROUNDS as u32).await?);
    }
    runs.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    Ok(runs.swap_remove(ROUNDS / 2))
}

/// As [`measure_once`], the median of several runs.
pub(super) async fn measure_median(
    server: &StoreServer,
    store: &Arc<dyn Store>,
    work: GrowthWork,
    filled: KeyStage,
    time: Duration,
) -> Result<Measurement, BenchError> {
    median_of_runs(time, async |time| measure_once(server, store, work, filled, time).await).await
}
