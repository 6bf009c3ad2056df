//! The connection pool: connects on first use and drops connections in an unknown state.

mod line;
pub(crate) mod session;
mod tls;
pub(crate) mod url;

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use hapax_core::{OpenMode, StoreError, StoreResult};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::PostgresConfig;
use crate::error::SqlResult;
use crate::migrate;
use line::ServerRole;
use session::{Params, SqlRow, SqlSession, typed};
use url::ConnectTarget;

pub(crate) struct ConnectionPool {
    pool: Pool,
    pub(crate) target: ConnectTarget,
    pub(crate) timeout: Duration,
    migrated: AtomicBool,
    migrating: Mutex<()>,
    partitions: u16,
    pub(crate) mode: OpenMode,
}

impl ConnectionPool {
    pub(crate) fn new(config: &PostgresConfig) -> StoreResult<Self> {
        let target = url::connect_target(config)?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(target.driver.clone(), target.tls.clone(), recycling);
        let pool = Pool::builder(manager).max_size(config.max_connections).build();
        Ok(Self {
            pool: pool.map_err(StoreError::internal)?,
            target,
            timeout: config.timeout,
            migrated: AtomicBool::new(false),
            migrating: Mutex::new(()),
            partitions: config.partitions,
            mode: config.mode,
        })
    }

    /// Runs a whole call, from the wait for a connection to the answer, within the timeout.
    pub(crate) async fn run<T>(&self, call: impl Future<Output = SqlResult<T>>) -> StoreResult<T> {
        match timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if error.is_missing_schema() {
                    self.migrated.store(false, Ordering::Release);
                }
                Err(error.into_store_error(self.timeout))
            }
            Err(_) => {
                // Every idle connection to a server that went away silently would cost a timeout.
                self.pool.retain(|_, _| false);
                Err(StoreError::Timeout { timeout: self.timeout })
            }
        }
    }

    /// A connection to a server whose tables are up to date.
    pub(crate) async fn connection(&self) -> SqlResult<PooledConnection> {
        if !self.migrated.load(Ordering::Acquire) {
            self.migrate().await?;
        }
        self.checkout().await
    }

    /// A session that runs each statement on a connection that is free then.
    pub(crate) fn session(&self) -> impl SqlSession {
        self
    }

    /// A connection to a server whose tables were not looked at.
    pub(crate) async fn checkout(&self) -> SqlResult<PooledConnection> {
        let object = match self.pool.get().await {
            Ok(object) => object,
            Err(PoolError::Backend(error)) => return Err(error.into()),
            Err(other) => return Err(StoreError::unavailable(other).into()),
        };
        let is_new = Object::metrics(&object).recycled.is_none();
        let mut connection = PooledConnection {
            object: Some(object),
            prepares: !self.target.transaction_pooler,
            in_statement: false,
            close_on_drop: false,
        };
        if is_new && self.mode != OpenMode::ReadOnly {
            connection.follow_line().await?;
        }
        Ok(connection)
    }

    /// Runs once per process; after a failure the next call tries again.
    async fn migrate(&self) -> SqlResult<()> {
        let _one_at_a_time = self.migrating.lock().await;
        if self.migrated.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut connection = self.checkout().await?;
        connection.in_statement = true;
        if let Some(object) = &mut connection.object {
            match self.mode {
                OpenMode::Migrate => {
                    let schema = self.target.schema.as_deref();
                    migrate::apply(object, schema, Some(self.partitions)).await?;
                }
                OpenMode::Existing | OpenMode::ReadOnly => migrate::require_current(object).await?,
            }
        }
        connection.in_statement = false;
        if self.mode == OpenMode::Migrate {
            connection.follow_line().await?;
        }
        self.migrated.store(true, Ordering::Release);
        Ok(())
    }
}

impl SqlSession for &ConnectionPool {
    async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> SqlResult<Vec<SqlRow>> {
        self.connection().await?.rows(sql, params).await
    }
}

/// A connection of the pool. Dropped in the middle of a statement (by a cancelled call or a timeout)
/// it does not go back to the pool, because its answer may still arrive.
pub(crate) struct PooledConnection {
    object: Option<Object>,
    prepares: bool,
    in_statement: bool,
    close_on_drop: bool,
}

impl PooledConnection {
    /// Closes the connection after use instead of returning it to the pool.
    pub(crate) fn close_on_drop(&mut self) {
        self.close_on_drop = true;
    }

    /// Before anything is drawn over this connection, the sequence of fences follows the server's line of history.
    async fn follow_line(&mut self) -> SqlResult<()> {
        let Some(client) = &mut self.object else { return Ok(()) };
        self.in_statement = true;
        // A promotion does not close the connections of a standby, and begins another line.
        self.close_on_drop |= line::follow_line(client).await? == ServerRole::Standby;
        self.in_statement = false;
        Ok(())
    }
}

impl PooledConnection {
    /// The version of the stored tables; 0 without tables.
    pub(crate) async fn schema_version(&mut self) -> SqlResult<usize> {
        self.in_statement = true;
        let version = match &mut self.object {
            Some(client) => migrate::read_version(client).await?,
            None => 0,
        };
        self.in_statement = false;
        Ok(version)
    }
}

impl SqlSession for PooledConnection {
    async fn rows(&mut self, sql: &'static str, params: Params<'_>) -> SqlResult<Vec<SqlRow>> {
        let Some(client) = &self.object else {
            return Err(
                StoreError::Unavailable { reason: "connection lost".into(), source: None }.into()
            );
        };
        self.in_statement = true;
        let rows = if self.prepares {
            let (values, types): (Vec<_>, Vec<_>) = typed(params).unzip();
            match client.prepare_typed_cached(sql, &types).await {
                Ok(statement) => client.query(&statement, &values).await,
                Err(error) => Err(error),
            }
        } else {
            client.query_typed(sql, &typed(params).collect::<Vec<_>>()).await
        };
        self.in_statement = false;
        // A cached plan that no longer fits the tables, or a statement name that a pooler mixed up: a
        // new connection prepares again.
        self.close_on_drop |= matches!(&rows, Err(error)
            if error.code().is_some_and(|code| ["0A000", "26000", "42P05"].contains(&code.code())));
        Ok(rows?.into_iter().map(SqlRow::Tokio).collect())
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if (self.in_statement || self.close_on_drop)
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}
