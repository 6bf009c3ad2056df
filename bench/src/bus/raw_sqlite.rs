//! One connection, and as many inserts in a commit as there are tasks to ask for them, but at most
//! [`BATCH`].

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax_workload::{BenchError, BenchOperation};

use super::publishing::EventSequence;
use crate::raw::engine;
use crate::raw::sqlite::BATCH;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_events (job TEXT, stage TEXT, seq INTEGER, \
    payload TEXT NOT NULL, PRIMARY KEY (job, stage, seq)) STRICT, WITHOUT ROWID";
const INSERT: &str = "INSERT INTO raw_events VALUES (?1, ?2, ?3, ?4)";

pub(super) fn open(path: &Path) -> anyhow::Result<Arc<Mutex<Connection>>> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(TABLE)?;
    Ok(Arc::new(Mutex::new(connection)))
}

/// Inserts of events that no other run has.
pub(super) struct RawSqlitePublisher {
    connection: Arc<Mutex<Connection>>,
    events: EventSequence,
    batch: usize,
}

impl RawSqlitePublisher {
    pub(super) fn new(connection: &Arc<Mutex<Connection>>, tasks: usize) -> Self {
        let (connection, events) = (connection.clone(), EventSequence::fresh());
        Self { connection, events, batch: tasks.min(BATCH) }
    }

    fn commit(&self, turn: u64) -> Result<(), BenchError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(engine)?;
        for task in 0..self.batch {
            let event = self.events.event(task, turn);
            let values = (&event.job, event.stage, event.seq.cast_signed(), event.for_raw());
            tx.prepare_cached(INSERT).map_err(engine)?.execute(values).map_err(engine)?;
        }
        tx.commit().map_err(engine)
    }
}

#[async_trait]
impl BenchOperation for RawSqlitePublisher {
    async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
        tokio::task::block_in_place(|| self.commit(turn))
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}
