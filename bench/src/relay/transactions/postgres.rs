//! Transactions on PostgreSQL.

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use hapax_core::Token;
use hapax_core::inbox::MessageStatus;
use hapax_postgres::HapaxTransaction;
use hapax_workload::{BenchError, BenchOperation};
use tokio_postgres::NoTls;

use super::HapaxRow;
use crate::raw::engine;
use crate::relay::rows::{TOPIC, message};
use crate::store_server::POOL;

const TABLE: &str = "CREATE TABLE orders (id text COLLATE \"C\" PRIMARY KEY, body bytea NOT NULL)";
const ORDER: &str = "INSERT INTO orders VALUES ($1, $2)";
const PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ($1, $2, $3)";

pub(in crate::relay) struct PostgresOrders(Pool);

impl PostgresOrders {
    pub(in crate::relay) async fn connect(url: &str) -> anyhow::Result<Self> {
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(POOL).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }

    /// Transactions with orders that no other run has.
    pub(in crate::relay) fn transactions(&self, row: HapaxRow) -> PostgresTransactions {
        PostgresTransactions {
            pool: self.0.clone(),
            row,
            run: Token::random().as_str()[..12].to_owned(),
        }
    }
}

pub(in crate::relay) struct PostgresTransactions {
    pool: Pool,
    row: HapaxRow,
    run: String,
}

#[async_trait]
impl BenchOperation for PostgresTransactions {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let order = format!("{}-{task}-{turn}", self.run);
        let message = message(task).key(&order);
        let body = &message.payload[..];
        let mut client = self.pool.get().await.map_err(engine)?;
        let mut tx = client.transaction().await.map_err(engine)?;
        if self.row == HapaxRow::Inbox {
            let seen = tx.hapax().receive("billing", &order).await;
            if seen.map_err(engine)? != MessageStatus::First {
                return Err(BenchError::Unexpected("a new message was seen before"));
            }
        }
        let insert = tx.prepare_cached(ORDER).await.map_err(engine)?;
        tx.execute(&insert, &[&order, &body]).await.map_err(engine)?;
        match self.row {
            HapaxRow::Outbox => {
                let _ = tx.hapax().enqueue(&message).await?;
            }
            HapaxRow::PlainSql => {
                let insert = tx.prepare_cached(PLAIN).await.map_err(engine)?;
                tx.execute(&insert, &[&TOPIC, &order, &body]).await.map_err(engine)?;
            }
            HapaxRow::Nothing | HapaxRow::Inbox => {}
        }
        tx.commit().await.map_err(engine)
    }
}
