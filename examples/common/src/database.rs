//! A program's own database: an SQLite file or a PostgreSQL server, with the same SQL for both.
//!
//! A program that uses only one database needs none of this: see `examples/orders` for a
//! transaction with each driver.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::BytesMut;
use deadpool_postgres::{Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime};
use hapax::inbox::{InboxError, MessageStatus};
use hapax::sqlite::rusqlite::{self, Connection, TransactionBehavior, params_from_iter, types};
use hapax::{postgres, sqlite};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_postgres::NoTls;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

/// A pool of connections to a PostgreSQL server; connects when a connection is asked for.
pub fn postgres_pool(url: &str, timeout: Duration) -> anyhow::Result<Pool> {
    // `Verified` checks a connection before it is reused, so that a hanging one is discarded.
    let config = ManagerConfig { recycling_method: RecyclingMethod::Verified };
    // The driver's message would contain the URL, and with it the password.
    let url = url.parse().ok().context("that is no URL of a PostgreSQL database")?;
    let pool = Pool::builder(Manager::from_config(url, NoTls, config))
        .runtime(Runtime::Tokio1)
        .wait_timeout(Some(timeout))
        .create_timeout(Some(timeout))
        .recycle_timeout(Some(timeout));
    Ok(pool.build()?)
}

/// One connection to an SQLite file, used from blocking threads.
#[derive(Clone)]
pub struct SqliteFile(Arc<Mutex<Connection>>);

impl SqliteFile {
    /// Opens the file, or creates it. `busy_timeout` is for the other connections that write to the
    /// same file: a backup, the sweep, a second process.
    pub fn open(file: &str, busy_timeout: Duration) -> rusqlite::Result<Self> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(busy_timeout)?;
        // A change must be on disk before anybody is told of it.
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
        Ok(Self(Arc::new(Mutex::new(connection))))
    }

    /// Runs `work` on the connection in a blocking thread, so that async threads are never blocked.
    ///
    /// # Errors
    /// If `work` panics; its transaction is then rolled back.
    pub async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let connection = self.0.clone();
        spawn_blocking(move || work(&mut connection.blocking_lock())).await
    }
}

/// An SQLite file or a PostgreSQL server.
#[derive(Clone)]
pub struct Database {
    driver: Driver,
    timeout: Duration,
}

#[derive(Clone)]
enum Driver {
    Sqlite(SqliteFile),
    Postgres(Pool),
}

impl Database {
    /// Opens `sqlite:FILE` or `postgres://…`. A server is not connected to yet. `timeout` bounds
    /// every transaction.
    ///
    /// # Errors
    /// If the URL is neither of them, or the file cannot be opened.
    pub fn open(url: &str, timeout: Duration) -> anyhow::Result<Self> {
        let driver = match url.split_once(':') {
            Some(("sqlite", file)) => {
                let file = file.strip_prefix("//").unwrap_or(file);
                ensure!(!file.is_empty(), "sqlite: needs a file, as in sqlite:data.db");
                Driver::Sqlite(SqliteFile::open(file, timeout)?)
            }
            Some(("postgres" | "postgresql", _)) => Driver::Postgres(postgres_pool(url, timeout)?),
            _ => anyhow::bail!("sqlite:FILE or postgres://… is expected"),
        };
        Ok(Self { driver, timeout })
    }

    /// Creates hapax's tables, for the inbox.
    pub async fn create_hapax_tables(&self) -> anyhow::Result<()> {
        match &self.driver {
            Driver::Sqlite(file) => {
                Ok(file.with(|connection| sqlite::migrate(connection)).await??)
            }
            Driver::Postgres(pool) => Ok(postgres::migrate(&mut *pool.get().await?).await?),
        }
    }

    /// Runs `work` in a transaction, and commits it if `work` succeeds. The transaction is rolled
    /// back if `work` fails, panics or takes too long, or if the process dies.
    ///
    /// # Errors
    /// The errors of `work`, and a [`DatabaseError`] if the database gives no answer. A commit that
    /// timed out may have happened.
    pub async fn transaction<T, E>(
        &self,
        work: impl AsyncFnOnce(&mut DatabaseTransaction<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<DatabaseError> + Send + 'static,
    {
        // In a blocking thread, because SQLite blocks.
        let (database, runtime) = (self.clone(), Handle::current());
        let run = move || runtime.block_on(timeout(database.timeout, database.run(work)));
        match spawn_blocking(run).await {
            Ok(Ok(done)) => done,
            Ok(Err(elapsed)) => Err(DatabaseError::from(elapsed).into()),
            Err(panicked) => Err(DatabaseError::from(panicked).into()),
        }
    }

    async fn run<T, E: From<DatabaseError>>(
        &self,
        work: impl AsyncFnOnce(&mut DatabaseTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        match &self.driver {
            Driver::Sqlite(file) => {
                let mut connection = file.0.lock().await;
                // Take the write lock at once: a transaction that has only read cannot always get it.
                let begun = connection.transaction_with_behavior(TransactionBehavior::Immediate);
                DatabaseTransaction::Sqlite(begun.map_err(DatabaseError::from)?).run(work).await
            }
            Driver::Postgres(pool) => {
                let mut client = pool.get().await.map_err(DatabaseError::from)?;
                let begun = client.transaction().await.map_err(DatabaseError::from)?;
                DatabaseTransaction::Postgres(begun).run(work).await
            }
        }
    }

    /// Checks that the database answers.
    pub async fn ping(&self) -> Result<(), DatabaseError> {
        self.transaction(async |tx| tx.query("SELECT 1", &[]).await.map(drop)).await
    }
}

/// An open transaction of either driver.
pub enum DatabaseTransaction<'a> {
    /// In an SQLite file.
    Sqlite(rusqlite::Transaction<'a>),
    /// On a PostgreSQL server.
    Postgres(deadpool_postgres::Transaction<'a>),
}

impl DatabaseTransaction<'_> {
    async fn run<T, E: From<DatabaseError>>(
        mut self,
        work: impl AsyncFnOnce(&mut DatabaseTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let done = work(&mut self).await?;
        match self {
            Self::Sqlite(tx) => tx.commit().map_err(DatabaseError::from)?,
            Self::Postgres(tx) => tx.commit().await.map_err(DatabaseError::from)?,
        }
        Ok(done)
    }

    /// Runs one statement with the placeholders `?1`, `?2`, …, and returns its rows.
    pub async fn query(
        &self,
        sql: &str,
        values: &[&dyn DatabaseValue],
    ) -> Result<Vec<DatabaseRow>, DatabaseError> {
        match self {
            Self::Sqlite(tx) => {
                let mut statement = tx.prepare_cached(sql)?;
                let columns = statement.column_count();
                let values = params_from_iter(values.iter().map(|value| value.for_sqlite()));
                let rows = statement.query_map(values, |row| {
                    (0..columns).map(|n| row.get(n)).collect::<Result<_, _>>()
                })?;
                Ok(rows.map(|row| row.map(DatabaseRow::Sqlite)).collect::<Result<_, _>>()?)
            }
            Self::Postgres(tx) => {
                let values: Vec<_> = values.iter().map(|value| value.for_postgres()).collect();
                let rows = tx.query(&sql.replace('?', "$"), &values).await?;
                Ok(rows.into_iter().map(DatabaseRow::Postgres).collect())
            }
        }
    }

    /// Runs several statements without values. `{id}` stands for the type of a generated primary
    /// key, and `{json}` for that of a column with [`JsonText`].
    pub async fn batch(&self, sql: &str) -> Result<(), DatabaseError> {
        let (id, json) = match self {
            Self::Sqlite(_) => ("INTEGER PRIMARY KEY AUTOINCREMENT", "TEXT"),
            Self::Postgres(_) => ("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "json"),
        };
        let sql = sql.replace("{id}", id).replace("{json}", json);
        match self {
            Self::Sqlite(tx) => Ok(tx.execute_batch(&sql)?),
            Self::Postgres(tx) => Ok(tx.batch_execute(&sql).await?),
        }
    }

    /// Makes concurrent transactions with the same arbitrary number wait for this one.
    pub async fn lock(&self, number: i64) -> Result<(), DatabaseError> {
        match self {
            // An SQLite file has one writer at a time.
            Self::Sqlite(_) => Ok(()),
            Self::Postgres(tx) => {
                Ok(tx.execute("SELECT pg_advisory_xact_lock($1)", &[&number]).await.map(drop)?)
            }
        }
    }

    /// Records the message in hapax's inbox, and tells whether it is new.
    pub async fn receive(
        &mut self,
        consumer: &str,
        message: &str,
    ) -> Result<MessageStatus, DatabaseError> {
        match self {
            Self::Sqlite(tx) => {
                Ok(sqlite::HapaxTransaction::hapax(&**tx).receive(consumer, message)?)
            }
            Self::Postgres(tx) => {
                Ok(postgres::HapaxTransaction::hapax(&mut **tx).receive(consumer, message).await?)
            }
        }
    }
}

/// A value for a placeholder.
pub trait DatabaseValue {
    /// The value for SQLite.
    fn for_sqlite(&self) -> &dyn rusqlite::ToSql;
    /// The value for PostgreSQL.
    fn for_postgres(&self) -> &(dyn ToSql + Sync);
}

impl<T: rusqlite::ToSql + ToSql + Sync> DatabaseValue for T {
    fn for_sqlite(&self) -> &dyn rusqlite::ToSql {
        self
    }

    fn for_postgres(&self) -> &(dyn ToSql + Sync) {
        self
    }
}

/// A text for a column of type `{json}`.
#[derive(Debug)]
pub struct JsonText(pub String);

impl rusqlite::ToSql for JsonText {
    fn to_sql(&self) -> rusqlite::Result<types::ToSqlOutput<'_>> {
        Ok(self.0.as_str().into())
    }
}

impl ToSql for JsonText {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSON);
    to_sql_checked!();
}

/// A row of a result.
pub enum DatabaseRow {
    /// Of an SQLite file.
    Sqlite(Vec<types::Value>),
    /// Of a PostgreSQL server.
    Postgres(tokio_postgres::Row),
}

impl DatabaseRow {
    /// The value of a column, counted from 0.
    pub fn get<T>(&self, column: usize) -> Result<T, DatabaseError>
    where
        T: types::FromSql + for<'a> FromSql<'a>,
    {
        match self {
            Self::Sqlite(values) => {
                let value = types::ValueRef::from(&values[column]);
                Ok(T::column_result(value).map_err(rusqlite::Error::from)?)
            }
            Self::Postgres(row) => Ok(row.try_get(column)?),
        }
    }
}

/// Why a database gave no answer. Without the driver's message, which may contain values.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the database gives no answer ({reason})")]
pub struct DatabaseError {
    /// The part that failed.
    pub reason: &'static str,
    /// The driver's code for the error.
    pub code: Option<String>,
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        let code = error.sqlite_error_code().map(|code| format!("{code:?}"));
        Self { reason: "sqlite", code }
    }
}

impl From<tokio_postgres::Error> for DatabaseError {
    fn from(error: tokio_postgres::Error) -> Self {
        let code = error.code().map(|state| state.code().to_owned());
        Self { reason: "postgres", code }
    }
}

/// Gives the errors of these types a fixed reason.
macro_rules! reasons {
    ($($error:ty => $reason:literal),+) => {$(
        impl From<$error> for DatabaseError {
            fn from(_: $error) -> Self {
                Self { reason: $reason, code: None }
            }
        }
    )+};
}

reasons!(PoolError => "no connection", InboxError => "inbox", Elapsed => "timeout", JoinError => "panic");
