//! Transactions on SQLite: one connection, one or many orders in a commit.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use hapax_bench::{Failure, Operation};
use hapax_core::Token;
use hapax_core::inbox::MessageStatus;
use hapax_sqlite::HapaxTransaction;
use hapax_sqlite::rusqlite::{Connection, TransactionBehavior};

use super::Extra;
use crate::raw::engine;
use crate::relay::fill::{TOPIC, message};

const TABLE: &str = "CREATE TABLE orders (id TEXT PRIMARY KEY, body BLOB NOT NULL) STRICT";
const ORDER: &str = "INSERT INTO orders VALUES (?1, ?2)";
const PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES (?1, ?2, ?3)";

pub(super) struct Sqlite(Arc<Mutex<Connection>>);

impl Sqlite {
    /// With hapax's tables in it already.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(path)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(TABLE)?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Transactions with orders that no others have.
    pub(super) fn transactions(&self, extra: Extra, batch: usize) -> Transactions {
        let run = Token::random().as_str()[..12].to_owned();
        Transactions { connection: self.0.clone(), extra, run, batch }
    }
}

pub(super) struct Transactions {
    connection: Arc<Mutex<Connection>>,
    extra: Extra,
    run: String,
    batch: usize,
}

impl Transactions {
    fn commit(&self, turn: u64) -> Result<(), Failure> {
        let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let tx = tx.map_err(engine)?;
        for task in 0..self.batch {
            self.order(&tx, &format!("{}-{task}-{turn}", self.run))?;
        }
        tx.commit().map_err(engine)
    }

    fn order(&self, tx: &Connection, order: &str) -> Result<(), Failure> {
        let message = message(0).key(order);
        let body = &message.payload[..];
        if self.extra == Extra::Inbox {
            let seen = tx.hapax().receive("billing", order);
            if seen.map_err(engine)? != MessageStatus::First {
                return Err(Failure::Unexpected("a new message was seen before"));
            }
        }
        let mut insert = tx.prepare_cached(ORDER).map_err(engine)?;
        insert.execute((order, body)).map_err(engine)?;
        match self.extra {
            Extra::Outbox => {
                let _ = tx.hapax().enqueue(&message)?;
            }
            Extra::PlainSql => {
                let mut insert = tx.prepare_cached(PLAIN).map_err(engine)?;
                insert.execute((TOPIC, order, body)).map_err(engine)?;
            }
            Extra::Nothing | Extra::Inbox => {}
        }
        Ok(())
    }
}

#[async_trait]
impl Operation for Transactions {
    async fn run(&self, _task: usize, turn: u64) -> Result<(), Failure> {
        tokio::task::block_in_place(|| self.commit(turn))
    }

    fn batch(&self) -> u32 {
        self.batch as u32
    }
}
