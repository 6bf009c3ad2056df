//! One prepared statement for each step, each with a commit of its own.

use async_trait::async_trait;
use deadpool_postgres::{GenericClient, Manager, Pool};
use hapax_workload::BenchError;
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;

use super::{RawEngine, RawStep, TOKEN, VALUE, engine, one_row};
use crate::store_server::POOL;

const TABLE: &str = "CREATE TABLE raw (name text COLLATE \"C\" PRIMARY KEY, token text NOT NULL, \
    version bigint NOT NULL, value text NOT NULL)";
const INSERT: &str = "INSERT INTO raw VALUES ($1, $2, 1, $3) ON CONFLICT DO NOTHING";
const SETTLE: &str = "UPDATE raw SET value = $2 WHERE name = $1";
const DELETE: &str = "DELETE FROM raw WHERE name = $1";
const SELECT: &str = "SELECT version, value FROM raw WHERE name = $1";
const CHANGE: &str =
    "UPDATE raw SET value = $2, version = version + 1 WHERE name = $1 AND version = $3";

/// A pool of [`POOL`] connections to a database with this new table.
pub(crate) async fn open_pool(url: &str, table: &str) -> anyhow::Result<Pool> {
    let manager = Manager::new(url.parse()?, NoTls);
    let pool = Pool::builder(manager).max_size(POOL).build()?;
    pool.get().await?.batch_execute(table).await?;
    Ok(pool)
}

/// Runs a prepared statement that changes one row.
pub(crate) async fn change_row(
    client: &impl GenericClient,
    sql: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<(), BenchError> {
    let statement = client.prepare_cached(sql).await.map_err(engine)?;
    one_row(client.execute(&statement, values).await)
}

pub(super) struct RawPostgres(Pool);

impl RawPostgres {
    pub(super) async fn connect(url: &str) -> anyhow::Result<Self> {
        Ok(Self(open_pool(url, TABLE).await?))
    }

    async fn version(&self, key: &str) -> Result<i64, BenchError> {
        let client = self.0.get().await.map_err(engine)?;
        let statement = client.prepare_cached(SELECT).await.map_err(engine)?;
        let row = client.query_one(&statement, &[&key]).await.map_err(engine)?;
        let _value: String = row.try_get(1).map_err(engine)?;
        row.try_get(0).map_err(engine)
    }

    async fn change(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<(), BenchError> {
        let client = self.0.get().await.map_err(engine)?;
        change_row(&client, sql, values).await
    }
}

#[async_trait]
impl RawEngine for RawPostgres {
    async fn run(&self, step: RawStep, keys: &[String]) -> Result<(), BenchError> {
        for key in keys {
            match step {
                RawStep::Claim => self.change(INSERT, &[key, &TOKEN, &""]).await?,
                RawStep::Settle => self.change(SETTLE, &[key, &VALUE]).await?,
                RawStep::Release => self.change(DELETE, &[key]).await?,
                RawStep::Create => self.change(INSERT, &[key, &TOKEN, &VALUE]).await?,
                RawStep::Read => drop(self.version(key).await?),
                RawStep::Update => {
                    let version = self.version(key).await?;
                    self.change(CHANGE, &[key, &VALUE, &version]).await?;
                }
            }
        }
        Ok(())
    }
}
