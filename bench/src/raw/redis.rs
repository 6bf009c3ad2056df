//! Plain Redis commands over one multiplexed connection.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_workload::{BenchError, BenchOperation, BenchPlan, Measurement, Workload, measure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, cmd};

use super::{Names, RawEngine, TOKEN, VALUE, engine};

/// The TTL in milliseconds of keys that are not read again, so that they do not pile up.
const A_WHILE: u32 = 10_000;
/// The TTL of keys that are read during the whole run.
const UNTIL_THE_END: u32 = 86_400_000;

pub(crate) struct RawRedis(MultiplexedConnection);

impl RawRedis {
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        // The driver's own limits are for one call; many at once on a busy machine need more.
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(std::time::Duration::from_secs(10)));
        let client = Client::open(url)?;
        Ok(Self(client.get_multiplexed_async_connection_with_config(&config).await?))
    }
}

#[async_trait]
impl RawEngine for RawRedis {
    async fn measure(
        &self,
        workload: Workload,
        plan: &BenchPlan,
    ) -> Result<Measurement, BenchError> {
        let work = Work { connection: self.0.clone(), names: Names::fresh(), workload };
        if matches!(workload, Workload::Replay | Workload::Record) {
            for task in 0..plan.tasks {
                work.set(&work.names.name(task, 0), UNTIL_THE_END).await?;
            }
        }
        measure(Arc::new(work), plan).await
    }
}

struct Work {
    connection: MultiplexedConnection,
    names: Names,
    workload: Workload,
}

impl Work {
    async fn claim(&self, name: &str) -> Result<(), BenchError> {
        let set: Option<String> = cmd("SET")
            .arg(name)
            .arg(TOKEN)
            .arg(&["NX", "PX", "30000"])
            .query_async(&mut self.connection.clone())
            .await
            .map_err(engine)?;
        set.map(drop).ok_or(BenchError::Unexpected("a fresh key was taken"))
    }

    async fn set(&self, name: &str, milliseconds: u32) -> Result<(), BenchError> {
        let mut connection = self.connection.clone();
        let set = cmd("SET").arg(name).arg(VALUE).arg("PX").arg(milliseconds).to_owned();
        set.query_async(&mut connection).await.map_err(engine)
    }

    async fn get(&self, name: &str) -> Result<(), BenchError> {
        let value: Option<Vec<u8>> =
            cmd("GET").arg(name).query_async(&mut self.connection.clone()).await.map_err(engine)?;
        value.map(drop).ok_or(BenchError::Unexpected("a value is gone"))
    }

    async fn delete(&self, name: &str) -> Result<(), BenchError> {
        cmd("DEL").arg(name).query_async(&mut self.connection.clone()).await.map_err(engine)
    }
}

#[async_trait]
impl BenchOperation for Work {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match self.workload {
            Workload::Command => {
                let name = self.names.name(task, turn);
                self.claim(&name).await?;
                self.set(&name, A_WHILE).await
            }
            Workload::Lock => {
                let name = self.names.name(task, turn);
                self.claim(&name).await?;
                self.delete(&name).await
            }
            Workload::Replay => self.get(&self.names.name(task, 0)).await,
            Workload::Record => {
                let name = self.names.name(task, 0);
                self.get(&name).await?;
                self.set(&name, UNTIL_THE_END).await
            }
        }
    }
}
