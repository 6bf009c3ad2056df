//! One prepared statement for each step, each with a commit of its own.

use std::sync::Arc;

use async_trait::async_trait;
use deadpool_postgres::{Manager, Object, Pool};
use hapax_workload::{BenchError, BenchOperation, BenchPlan, Measurement, Workload, measure};
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;

use super::{Names, RawEngine, TOKEN, VALUE, engine};

const TABLE: &str = "CREATE TABLE raw (name text COLLATE \"C\" PRIMARY KEY, token text NOT NULL, \
    version bigint NOT NULL, value text NOT NULL)";
const INSERT: &str = "INSERT INTO raw VALUES ($1, $2, 1, '') ON CONFLICT DO NOTHING";
const SETTLE: &str = "UPDATE raw SET value = $2 WHERE name = $1";
const DELETE: &str = "DELETE FROM raw WHERE name = $1";
const SELECT: &str = "SELECT version, value FROM raw WHERE name = $1";
const CHANGE: &str =
    "UPDATE raw SET value = $2, version = version + 1 WHERE name = $1 AND version = $3";

pub(crate) struct RawPostgres(Pool);

impl RawPostgres {
    pub(crate) async fn open(url: &str, connections: usize) -> anyhow::Result<Self> {
        let manager = Manager::new(url.parse()?, NoTls);
        let pool = Pool::builder(manager).max_size(connections).build()?;
        pool.get().await?.batch_execute(TABLE).await?;
        Ok(Self(pool))
    }
}

#[async_trait]
impl RawEngine for RawPostgres {
    async fn measure(
        &self,
        workload: Workload,
        plan: &BenchPlan,
    ) -> Result<Measurement, BenchError> {
        let work = Work { pool: self.0.clone(), names: Names::fresh(), workload };
        if matches!(workload, Workload::Replay | Workload::Record) {
            for task in 0..plan.tasks {
                let name = work.names.name(task, 0);
                work.change_one(INSERT, &[&name, &TOKEN]).await?;
                work.change_one(SETTLE, &[&name, &VALUE]).await?;
            }
        }
        measure(Arc::new(work), plan).await
    }
}

struct Work {
    pool: Pool,
    names: Names,
    workload: Workload,
}

impl Work {
    async fn connection(&self) -> Result<Object, BenchError> {
        self.pool.get().await.map_err(engine)
    }

    async fn change_one(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<(), BenchError> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(sql).await.map_err(engine)?;
        match connection.execute(&statement, values).await.map_err(engine)? {
            1 => Ok(()),
            _ => Err(BenchError::Unexpected("a row of one's own was not there")),
        }
    }

    async fn version(&self, name: &str) -> Result<i64, BenchError> {
        let connection = self.connection().await?;
        let statement = connection.prepare_cached(SELECT).await.map_err(engine)?;
        let row = connection.query_one(&statement, &[&name]).await.map_err(engine)?;
        let _value: String = row.try_get(1).map_err(engine)?;
        row.try_get(0).map_err(engine)
    }
}

#[async_trait]
impl BenchOperation for Work {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        match self.workload {
            Workload::Command => {
                let name = self.names.name(task, turn);
                self.change_one(INSERT, &[&name, &TOKEN]).await?;
                self.change_one(SETTLE, &[&name, &VALUE]).await
            }
            Workload::Lock => {
                let name = self.names.name(task, turn);
                self.change_one(INSERT, &[&name, &TOKEN]).await?;
                self.change_one(DELETE, &[&name]).await
            }
            Workload::Replay => self.version(&self.names.name(task, 0)).await.map(drop),
            Workload::Record => {
                let name = self.names.name(task, 0);
                let version = self.version(&name).await?;
                self.change_one(CHANGE, &[&name, &VALUE, &version]).await
            }
        }
    }
}
