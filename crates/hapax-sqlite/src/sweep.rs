use hapax_core::{StoreError, Timestamp};
use rusqlite::{Connection, params};

use crate::error::fault;
use crate::log::sweep_job;
use crate::row::stored;

/// So many entries of a job make one piece of it.
const PIECE: usize = 1000;
/// So many rows of jobs are deleted in one transaction, so that nobody waits for long.
const ROWS: usize = 2000;

/// Where expired rows are, and by what their age is known.
const TABLES: [&str; 3] = [
    "DELETE FROM hapax_claims WHERE rowid IN (SELECT rowid FROM hapax_claims \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_records WHERE rowid IN (SELECT rowid FROM hapax_records \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_outbox WHERE seq IN (SELECT seq FROM hapax_outbox \
     WHERE state = 6 AND forget_at <= ?1 ORDER BY forget_at LIMIT ?2)",
];

/// What one transaction deleted.
pub(crate) struct Swept {
    /// Claims, records, done items, and jobs (large ones piece by piece).
    pub(crate) count: u64,
    /// Whether there may be more jobs.
    pub(crate) more: bool,
}

/// Deletes at most `at_most` of what has expired, the oldest first. Fences go on growing: their
/// sequence is not in these rows.
pub(crate) fn sweep(
    connection: &Connection,
    now: Timestamp,
    at_most: u64,
) -> Result<Swept, StoreError> {
    let mut count = 0;
    for table in TABLES {
        count += delete(connection, table, now, at_most - count)?;
    }
    let mut rows = 0;
    while count < at_most && rows < ROWS {
        match sweep_job(connection, now, PIECE)? {
            Some(gone) => rows += gone,
            None => return Ok(Swept { count, more: false }),
        }
        count += 1;
    }
    Ok(Swept { count, more: true })
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
