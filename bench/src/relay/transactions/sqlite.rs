//! Transactions on SQLite: one connection, one or many orders in a commit.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hapax_core::Token;
use hapax_core::inbox::MessageStatus;
use hapax_sqlite::HapaxTransaction;
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior};
use hapax_workload::{BenchError, BenchOperation};

use super::HapaxRow;
use crate::raw::engine;
use crate::relay::rows::{TOPIC, message};

const TABLE: &str = "CREATE TABLE orders (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT";
const ORDER: &str = "INSERT INTO orders VALUES (?1, ?2)";
const PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES (?1, ?2, ?3)";

pub(super) struct SqliteOrders(Arc<Mutex<Connection>>);

impl SqliteOrders {
    /// Opens a database that has hapax's tables.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLE)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Transactions with orders that no other run has.
    pub(super) fn transactions(&self, row: HapaxRow, batch: usize) -> SqliteTransactions {
        let run = Token::random().as_str()[..12].to_owned();
        SqliteTransactions { connection: self.0.clone(), row, run, batch }
    }
}

pub(super) struct SqliteTransactions {
    connection: Arc<Mutex<Connection>>,
    row: HapaxRow,
    run: String,
    batch: usize,
}

impl SqliteTransactions {
    fn commit(&self, turn: u64) -> Result<(), BenchError> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(engine)?;
        for task in 0..self.batch {
            self.order(&tx, &format!("{}-{task}-{turn}", self.run))?;
        }
        tx.commit().map_err(engine)
    }

    fn order(&self, tx: &Connection, order: &str) -> Result<(), BenchError> {
        let message = message(0).key(order);
        let body = &message.payload[..];
        if self.row == HapaxRow::Inbox {
            let seen = tx.hapax().receive("billing", order);
            if seen.map_err(engine)? != MessageStatus::First {
                return Err(BenchError::Unexpected("a new message was seen before"));
            }
        }
        let mut insert = tx.prepare_cached(ORDER).map_err(engine)?;
        insert.execute((order, body)).map_err(engine)?;
        match self.row {
            HapaxRow::Outbox => {
                let _ = tx.hapax().enqueue(&message)?;
            }
            HapaxRow::PlainSql => {
                let mut insert = tx.prepare_cached(PLAIN).map_err(engine)?;
                insert.execute((TOPIC, order, body)).map_err(engine)?;
            }
            HapaxRow::Nothing | HapaxRow::Inbox => {}
        }
        Ok(())
    }
}

#[async_trait]
impl BenchOperation for SqliteTransactions {
    async fn run(&self, _task: usize, turn: u64) -> Result<(), BenchError> {
        tokio::task::block_in_place(|| self.commit(turn))
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}
