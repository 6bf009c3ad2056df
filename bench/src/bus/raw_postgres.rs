//! One durable insert for each event, in a prepared statement.

use async_trait::async_trait;
use deadpool_postgres::{Manager, Pool};
use hapax_workload::BenchError;
use tokio_postgres::NoTls;

use super::publishing::BenchEvent;
use super::publishing::EventPublisher;
use crate::raw::engine;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS raw_events (job text COLLATE \"C\", \
    stage text COLLATE \"C\", seq bigint, payload text NOT NULL, PRIMARY KEY (job, stage, seq))";
const INSERT: &str = "INSERT INTO raw_events VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";

pub(super) struct RawPostgresPublisher(Pool);

impl RawPostgresPublisher {
    pub(super) async fn connect(url: &str, connections: usize) -> anyhow::Result<Self> {
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(connections).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }
}

#[async_trait]
impl EventPublisher for RawPostgresPublisher {
    async fn publish(&self, _task: usize, event: BenchEvent) -> Result<(), BenchError> {
        let seq = event.seq.cast_signed();
        let connection = self.0.get().await.map_err(engine)?;
        let statement = connection.prepare_cached(INSERT).await.map_err(engine)?;
        let values: &[&(dyn tokio_postgres::types::ToSql + Sync)] =
            &[&event.job, &event.stage, &seq, &event.for_raw()];
        match connection.execute(&statement, values).await.map_err(engine)? {
            1 => Ok(()),
            _ => Err(BenchError::Unexpected("a new event was published before")),
        }
    }
}
