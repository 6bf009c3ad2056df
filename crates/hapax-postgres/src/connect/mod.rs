//! The connections: made when they are needed, thrown away when in doubt.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod};
use hapax_core::StoreError;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::Config;
use crate::error::Failure;
use crate::migrate;
use session::{Params, Row, Session, Sql, typed};
use url::Target;

pub(crate) mod session;
mod tls;
pub(crate) mod url;

pub(crate) struct Link {
    pool: Pool,
    pub(crate) target: Target,
    pub(crate) limit: Duration,
    migrated: AtomicBool,
    migrating: Mutex<()>,
    partitions: u16,
}

impl Link {
    pub(crate) fn new(config: &Config) -> Result<Self, StoreError> {
        let target = url::target(config)?;
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(target.driver.clone(), target.tls.clone(), recycling);
        let pool = Pool::builder(manager).max_size(config.pool).build();
        Ok(Self {
            pool: pool.map_err(StoreError::internal)?,
            target,
            limit: config.limit,
            migrated: AtomicBool::new(false),
            migrating: Mutex::new(()),
            partitions: config.partitions,
        })
    }

    /// Runs a whole call, from the wait for a connection to the answer, within the limit.
    pub(crate) async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        match timeout(self.limit, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(failure)) => {
                if failure.is_missing_schema() {
                    self.migrated.store(false, Ordering::Release);
                }
                Err(failure.into_store(self.limit))
            }
            Err(_) => {
                // Idle connections to a server that went away silently would cost a limit each.
                self.pool.retain(|_, _| false);
                Err(StoreError::Timeout { timeout: self.limit })
            }
        }
    }

    /// A connection to a server whose tables are up to date.
    pub(crate) async fn lease(&self) -> Result<Lease, Failure> {
        if !self.migrated.load(Ordering::Acquire) {
            self.migrate().await?;
        }
        self.connection().await
    }

    async fn connection(&self) -> Result<Lease, Failure> {
        match self.pool.get().await {
            Ok(object) => Ok(Lease {
                object: Some(object),
                pooled: self.target.pooled,
                busy: false,
                last: false,
            }),
            Err(PoolError::Backend(error)) => Err(error.into()),
            Err(other) => Err(StoreError::unavailable(other).into()),
        }
    }

    /// Once per process; tried again by the next call where it failed.
    async fn migrate(&self) -> Result<(), Failure> {
        let _one_at_a_time = self.migrating.lock().await;
        if self.migrated.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut lease = self.connection().await?;
        lease.busy = true;
        if let Some(object) = &mut lease.object {
            migrate::apply(object, self.target.schema.as_deref(), Some(self.partitions)).await?;
        }
        lease.busy = false;
        self.migrated.store(true, Ordering::Release);
        Ok(())
    }
}

/// A connection of the pool. One that is dropped in the middle of a statement (a caller who gave up,
/// a time limit) does not go back: its answer may come at any time, or never.
pub(crate) struct Lease {
    object: Option<Object>,
    pooled: bool,
    busy: bool,
    last: bool,
}

impl Lease {
    /// It is not to be used by anybody else afterwards, whatever happens.
    pub(crate) fn is_last(&mut self) {
        self.last = true;
    }
}

impl Session for Lease {
    async fn rows(&mut self, sql: &Sql, params: Params<'_>) -> Result<Vec<Row>, Failure> {
        let Some(client) = &self.object else {
            return Err(
                StoreError::Unavailable { reason: "connection lost".into(), source: None }.into()
            );
        };
        self.busy = true;
        let rows = if self.pooled {
            client.query_typed(sql.text, &typed(sql, params)).await
        } else {
            match client.prepare_typed_cached(sql.text, sql.types).await {
                Ok(statement) => client.query(&statement, params).await,
                Err(error) => Err(error),
            }
        };
        self.busy = false;
        // A statement that does not fit the tables any more, or that somebody else's session has:
        // a new connection prepares it anew.
        self.last |= matches!(&rows, Err(error)
            if error.code().is_some_and(|code| ["0A000", "26000", "42P05"].contains(&code.code())));
        Ok(rows?.into_iter().map(Row::Own).collect())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if (self.busy || self.last)
            && let Some(object) = self.object.take()
        {
            drop(Object::take(object));
        }
    }
}
