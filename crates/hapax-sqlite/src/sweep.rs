use hapax_core::{StoreError, Timestamp};
use rusqlite::{Connection, params};

use crate::error::fault;
use crate::row::stored;

/// Deletes at most `at_most` rows that have expired, the oldest first. Fences go on growing: their
/// sequence is not in these rows.
pub(crate) fn sweep(
    connection: &Connection,
    now: Timestamp,
    at_most: u32,
) -> Result<u64, StoreError> {
    let claims = delete(
        connection,
        "DELETE FROM hapax_claims WHERE rowid IN (SELECT rowid FROM hapax_claims \
         WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        now,
        u64::from(at_most),
    )?;
    let records = delete(
        connection,
        "DELETE FROM hapax_records WHERE rowid IN (SELECT rowid FROM hapax_records \
         WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
        now,
        u64::from(at_most) - claims,
    )?;
    Ok(claims + records)
}

fn delete(
    connection: &Connection,
    sql: &str,
    now: Timestamp,
    at_most: u64,
) -> Result<u64, StoreError> {
    connection
        .prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params![stored(now.0), stored(at_most)]))
        .map(|count| count as u64)
        .map_err(fault)
}
