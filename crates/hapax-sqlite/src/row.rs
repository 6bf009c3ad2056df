//! Helpers for every table: cached statements, integers, keys and the sequence.

use hapax_core::{Key, StoreError};
use rusqlite::{Connection, Params};

use crate::error::store_error;

/// Runs a cached statement and returns the number of changed rows.
pub(crate) fn execute(
    connection: &Connection,
    sql: &str,
    params: impl Params,
) -> Result<usize, StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(store_error)
}

/// Saturates: times and durations beyond the range of the column are its maximum.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The columns `tenant, kind, scope, name` of a key.
pub(crate) fn key_columns(key: &Key) -> [&str; 4] {
    [key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()]
}

/// The next number of the sequence that fences and versions come from. The caller holds the write
/// lock. (Two statements cost a third of one with RETURNING, which builds a table in memory.)
pub(crate) fn next_sequence(connection: &Connection) -> Result<u64, StoreError> {
    execute(connection, "UPDATE hapax_meta SET value = value + 1 WHERE name = 'sequence'", [])?;
    connection
        .prepare_cached("SELECT value FROM hapax_meta WHERE name = 'sequence'")
        .and_then(|mut query| query.query_row([], |row| row.get(0)))
        .map_err(store_error)
}

/// Writes a value that differs each time, because SQLite skips a write that changes nothing.
pub(crate) fn write_probe(connection: &Connection) -> Result<(), StoreError> {
    execute(
        connection,
        "INSERT INTO hapax_meta (name, value) VALUES ('probe', 0) \
         ON CONFLICT DO UPDATE SET value = 1 - value",
        [],
    )
    .map(drop)
}
