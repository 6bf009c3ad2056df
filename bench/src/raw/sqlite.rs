//! One connection, and as many operations in a commit as there are tasks to ask for them, but at
//! most [`BATCH`]: a single task has to see its own commit before it goes on.

use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use hapax_sqlite::rusqlite::{Connection, Params, TransactionBehavior};
use hapax_workload::BenchError;
use tokio::task::block_in_place;

use super::{RawEngine, RawStep, TOKEN, VALUE, engine, one_row};

/// The most operations in a commit.
pub(crate) const BATCH: usize = 64;

const TABLE: &str = "CREATE TABLE raw (name TEXT PRIMARY KEY, token TEXT NOT NULL, \
    version INTEGER NOT NULL, value TEXT NOT NULL) STRICT, WITHOUT ROWID";
const INSERT: &str = "INSERT INTO raw VALUES (?1, ?2, 1, ?3)";
const SETTLE: &str = "UPDATE raw SET value = ?2 WHERE name = ?1";
const DELETE: &str = "DELETE FROM raw WHERE name = ?1";
const SELECT: &str = "SELECT version, value FROM raw WHERE name = ?1";
const CHANGE: &str =
    "UPDATE raw SET value = ?2, version = version + 1 WHERE name = ?1 AND version = ?3";

/// A SQLite file with one connection, as durable as hapax's.
pub(crate) struct RawSqliteFile(Mutex<Connection>);

impl RawSqliteFile {
    /// Opens the file of a store's URL, with this new table.
    pub(crate) fn open(url: &str, table: &str) -> anyhow::Result<Self> {
        let connection = Connection::open(url.trim_start_matches("sqlite:"))?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.execute_batch(table)?;
        Ok(Self(Mutex::new(connection)))
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes one change for each item, all in one transaction.
    pub(crate) fn commit<T>(
        &self,
        items: impl IntoIterator<Item = T>,
        change: impl Fn(&Connection, T) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        block_in_place(|| {
            let mut connection = self.connection();
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate);
            let tx = tx.map_err(engine)?;
            items.into_iter().try_for_each(|item| change(&tx, item))?;
            tx.commit().map_err(engine)
        })
    }
}

/// Runs a prepared statement that changes one row.
pub(crate) fn change_row(
    connection: &Connection,
    sql: &str,
    values: impl Params,
) -> Result<(), BenchError> {
    let changed =
        connection.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
    one_row(changed.map(|rows| rows as u64))
}

pub(super) struct RawSqlite(RawSqliteFile);

impl RawSqlite {
    pub(super) fn open(url: &str) -> anyhow::Result<Self> {
        Ok(Self(RawSqliteFile::open(url, TABLE)?))
    }

    fn versions(&self, keys: &[String]) -> Result<Vec<i64>, BenchError> {
        let connection = self.0.connection();
        let mut statement = connection.prepare_cached(SELECT).map_err(engine)?;
        let mut version = |key| {
            statement.query_row([key], |row| {
                row.get::<_, String>(1)?;
                row.get(0)
            })
        };
        block_in_place(|| keys.iter().map(|key| version(key).map_err(engine)).collect())
    }
}

#[async_trait]
impl RawEngine for RawSqlite {
    async fn run(&self, step: RawStep, keys: &[String]) -> Result<(), BenchError> {
        let insert =
            |value| self.0.commit(keys, |tx, key| change_row(tx, INSERT, (key, TOKEN, value)));
        match step {
            RawStep::Claim => insert(""),
            RawStep::Settle => self.0.commit(keys, |tx, key| change_row(tx, SETTLE, (key, VALUE))),
            RawStep::Release => self.0.commit(keys, |tx, key| change_row(tx, DELETE, [key])),
            RawStep::Create => insert(VALUE),
            RawStep::Read => self.versions(keys).map(drop),
            RawStep::Update => {
                let versions = self.versions(keys)?;
                self.0.commit(keys.iter().zip(versions), |tx, (key, version)| {
                    change_row(tx, CHANGE, (key, VALUE, version))
                })
            }
        }
    }

    fn batch(&self, tasks: usize) -> usize {
        tasks.min(BATCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache that all connections share loses the pages of readers; `.cargo/config.toml` has the flag against it.
    #[test]
    fn each_sqlite_connection_has_a_page_cache_of_its_own() {
        let connection = Connection::open_in_memory().unwrap();
        let used = "SELECT sqlite_compileoption_used('ENABLE_MEMORY_MANAGEMENT')";
        let is_shared: bool = connection.query_row(used, [], |row| row.get(0)).unwrap();
        assert!(!is_shared, "LIBSQLITE3_FLAGS of .cargo/config.toml was not used");
    }
}
