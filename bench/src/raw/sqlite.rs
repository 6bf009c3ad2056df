//! One connection, and as many operations in a commit as there are tasks to ask for them, but at
//! most [`BATCH`]: a single task has to see its own commit before it goes on.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use hapax_sqlite::rusqlite::{Connection, Transaction, TransactionBehavior};
use hapax_workload::{BenchError, BenchOperation, BenchPlan, Measurement, Workload, measure};

use super::{Names, RawEngine, TOKEN, VALUE, engine};

/// The most operations in a commit.
pub(crate) const BATCH: usize = 64;

const TABLE: &str = "CREATE TABLE raw (name TEXT PRIMARY KEY, token TEXT NOT NULL, \
    version INTEGER NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID";
const INSERT: &str = "INSERT INTO raw VALUES (?1, ?2, 1, '')";
const SETTLE: &str = "UPDATE raw SET value = ?2 WHERE name = ?1";
const DELETE: &str = "DELETE FROM raw WHERE name = ?1";
const SELECT: &str = "SELECT version, value FROM raw WHERE name = ?1";
const CHANGE: &str =
    "UPDATE raw SET value = ?2, version = version + 1 WHERE name = ?1 AND version = ?3";

type Shared = Arc<Mutex<Connection>>;

pub(crate) struct RawSqlite(Shared);

impl RawSqlite {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLE)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }
}

#[async_trait]
impl RawEngine for RawSqlite {
    async fn measure(
        &self,
        workload: Workload,
        plan: &BenchPlan,
    ) -> Result<Measurement, BenchError> {
        let batch = plan.tasks.min(BATCH);
        let work = Work { connection: self.0.clone(), names: Names::fresh(), workload, batch };
        if matches!(workload, Workload::Replay | Workload::Record) {
            let names = work.batch_of(0);
            work.commit(|tx| each(&names, |name| insert(tx, name)))?;
            work.commit(|tx| each(&names, |name| settle(tx, name)))?;
        }
        // SQLite has one writer: the tasks become the size of a batch.
        measure(Arc::new(work), &BenchPlan { tasks: 1, ..plan.clone() }).await
    }
}

struct Work {
    connection: Shared,
    names: Names,
    workload: Workload,
    batch: usize,
}

impl Work {
    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn batch_of(&self, turn: u64) -> Vec<String> {
        (0..self.batch).map(|task| self.names.name(task, turn)).collect()
    }

    fn commit(
        &self,
        change: impl FnOnce(&Transaction<'_>) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut connection = self.connection();
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(engine)?;
        change(&tx)?;
        tx.commit().map_err(engine)
    }

    fn run_batch(&self, turn: u64) -> Result<(), BenchError> {
        match self.workload {
            Workload::Command => {
                let names = self.batch_of(turn);
                self.commit(|tx| each(&names, |name| insert(tx, name)))?;
                self.commit(|tx| each(&names, |name| settle(tx, name)))
            }
            Workload::Lock => {
                let names = self.batch_of(turn);
                self.commit(|tx| each(&names, |name| insert(tx, name)))?;
                self.commit(|tx| each(&names, |name| delete(tx, name)))
            }
            Workload::Replay => {
                let connection = self.connection();
                each(&self.batch_of(0), |name| version(&connection, name).map(drop))
            }
            Workload::Record => {
                let names = self.batch_of(0);
                let read = |connection: &Connection| -> Result<Vec<i64>, BenchError> {
                    names.iter().map(|name| version(connection, name)).collect()
                };
                let versions = read(&self.connection())?;
                self.commit(|tx| {
                    let mut both = names.iter().zip(&versions);
                    both.try_for_each(|(name, version)| change(tx, name, *version))
                })
            }
        }
    }
}

fn each(
    names: &[String],
    step: impl FnMut(&String) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    names.iter().try_for_each(step)
}

fn one(changed: hapax_sqlite::rusqlite::Result<usize>) -> Result<(), BenchError> {
    match changed.map_err(engine)? {
        1 => Ok(()),
        _ => Err(BenchError::Unexpected("a row of one's own was not there")),
    }
}

fn insert(tx: &Connection, name: &str) -> Result<(), BenchError> {
    one(tx.prepare_cached(INSERT).map_err(engine)?.execute([name, TOKEN]))
}

fn settle(tx: &Connection, name: &str) -> Result<(), BenchError> {
    one(tx.prepare_cached(SETTLE).map_err(engine)?.execute([name, VALUE]))
}

fn delete(tx: &Connection, name: &str) -> Result<(), BenchError> {
    one(tx.prepare_cached(DELETE).map_err(engine)?.execute([name]))
}

fn change(tx: &Connection, name: &str, version: i64) -> Result<(), BenchError> {
    one(tx.prepare_cached(CHANGE).map_err(engine)?.execute((name, VALUE, version)))
}

fn version(connection: &Connection, name: &str) -> Result<i64, BenchError> {
    let mut statement = connection.prepare_cached(SELECT).map_err(engine)?;
    let row = statement.query_row([name], |row| {
        row.get::<_, String>(1)?;
        row.get(0)
    });
    row.map_err(engine)
}

#[async_trait]
impl BenchOperation for Work {
    async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
        tokio::task::block_in_place(|| self.run_batch(turn))
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}
