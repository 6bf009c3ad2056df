//! Transactions on PostgreSQL.

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use hapax_bench::{Failure, Operation};
use hapax_core::Token;
use hapax_core::inbox::MessageStatus;
use hapax_postgres::HapaxTransaction;
use tokio_postgres::NoTls;

use super::Extra;
use crate::place::POOL;
use crate::raw::engine;
use crate::relay::fill::{TOPIC, message};

const TABLE: &str = "CREATE TABLE orders (id text COLLATE \"C\" PRIMARY KEY, body bytea NOT NULL)";
const ORDER: &str = "INSERT INTO orders VALUES ($1, $2)";
const PLAIN: &str = "INSERT INTO hapax_outbox (topic, key, payload) VALUES ($1, $2, $3)";

pub(in crate::relay) struct Postgres(Pool);

impl Postgres {
    pub(in crate::relay) async fn connect(url: &str) -> anyhow::Result<Self> {
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(POOL).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }

    /// Transactions with orders that no others have.
    pub(in crate::relay) fn transactions(&self, extra: Extra) -> Transactions {
        Transactions { pool: self.0.clone(), extra, run: Token::random().as_str()[..12].to_owned() }
    }
}

pub(in crate::relay) struct Transactions {
    pool: Pool,
    extra: Extra,
    run: String,
}

#[async_trait]
impl Operation for Transactions {
    async fn run(&self, task: usize, turn: u64) -> Result<(), Failure> {
        let order = format!("{}-{task}-{turn}", self.run);
        let message = message(task).key(&order);
        let body = &message.payload[..];
        let mut client = self.pool.get().await.map_err(engine)?;
        let mut tx = client.transaction().await.map_err(engine)?;
        if self.extra == Extra::Inbox {
            let seen = tx.hapax().receive("billing", &order).await;
            if seen.map_err(engine)? != MessageStatus::First {
                return Err(Failure::Unexpected("a new message was seen before"));
            }
        }
        let insert = tx.prepare_cached(ORDER).await.map_err(engine)?;
        tx.execute(&insert, &[&order, &body]).await.map_err(engine)?;
        match self.extra {
            Extra::Outbox => {
                let _ = tx.hapax().enqueue(&message).await?;
            }
            Extra::PlainSql => {
                let insert = tx.prepare_cached(PLAIN).await.map_err(engine)?;
                tx.execute(&insert, &[&TOPIC, &order, &body]).await.map_err(engine)?;
            }
            Extra::Nothing | Extra::Inbox => {}
        }
        tx.commit().await.map_err(engine)
    }
}
