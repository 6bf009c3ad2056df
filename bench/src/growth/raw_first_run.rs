//! First runs on SQLite without hapax, beside as many keys: how much of what a claim and a settle lose is the engine's own loss.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_sqlite::rusqlite::params;
use hapax_workload::{BenchError, BenchOperation, BenchPlan, BenchSpan, Measurement, measure};

use super::keys::{command_key, scattered_name};
use super::work::{VALUE, WARM_UP};
use crate::progress;
use crate::raw::sqlite::{BATCH, RawSqliteFile, change_row};
use crate::store_server::StoreServer;
use crate::turns::fresh_run_id;

const INSERT: &str = "INSERT INTO raw_claims (tenant, kind, scope, name, phase, fence, attempt, token, granted_at, \
     lease_end, retention, expires_at, value) \
     VALUES (?1, 'command', ?2, ?3, 0, 1, 1, '0123456789abcdef0123456789abcdef', 0, 0, 0, 0, x'')";
const SETTLE: &str = "UPDATE raw_claims SET phase = 1, value = ?4 \
     WHERE tenant = ?1 AND kind = 'command' AND scope = ?2 AND name = ?3";

/// One thread that inserts rows at new names anywhere among the keys, commits, updates the same rows, and commits.
struct RawFirstRuns {
    file: RawSqliteFile,
    run_id: String,
}

/// Measures once, in the file of the raw table.
pub(super) async fn measure_once(
    server: &StoreServer,
    url: &str,
    time: Duration,
) -> Result<Measurement, BenchError> {
    let opened = RawSqliteFile::open(url, "");
    let file = opened.map_err(|error| BenchError::Engine(error.to_string()))?;
    let operation = RawFirstRuns { file, run_id: fresh_run_id() };
    let plan =
        BenchPlan::new(1, BenchSpan::Time(time)).warm_up(WARM_UP).servers([server.processes()]);
    let measured = measure(Arc::new(operation), &plan).await;
    progress();
    measured
}

#[async_trait]
impl BenchOperation for RawFirstRuns {
    async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
        let keys = (0..BATCH).map(|nth| command_key(&scattered_name(&self.run_id, nth, turn)));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        self.file.commit(&keys, |tx, key| {
            change_row(tx, INSERT, params![key.tenant().as_str(), key.scope(), key.name()])
        })?;
        self.file.commit(&keys, |tx, key| {
            let value = VALUE.as_bytes();
            change_row(tx, SETTLE, params![key.tenant().as_str(), key.scope(), key.name(), value])
        })
    }

    fn batch(&self) -> u32 {
        BATCH as u32
    }
}
