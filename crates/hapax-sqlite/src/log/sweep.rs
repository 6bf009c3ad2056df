use hapax_core::{StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::append::forgotten;
use crate::error::fault;
use crate::row::stored;

/// Deletes up to `entries` entries of one job that is over, and the job with the last of them; how
/// many rows it were, or `None` where no job is over.
pub(crate) fn sweep_job(
    connection: &Connection,
    now: Timestamp,
    entries: usize,
) -> Result<Option<usize>, StoreError> {
    let swept = || -> rusqlite::Result<Option<usize>> {
        let Some(job) = next_job(connection, now)? else { return Ok(None) };
        let gone = delete_entries(connection, job, entries)?;
        if gone < entries {
            connection.prepare_cached("DELETE FROM hapax_jobs WHERE id = ?1")?.execute([job])?;
        }
        Ok(Some(gone + 1))
    };
    swept().map_err(fault)
}

/// So many jobs are put off in one go.
const PUT_OFF: usize = 1000;

/// A job that is over. One that looked so but has had events since is looked at again later.
fn next_job(connection: &Connection, now: Timestamp) -> rusqlite::Result<Option<i64>> {
    for _ in 0..PUT_OFF {
        let found: Option<(i64, bool)> = connection
            .prepare_cached(
                "SELECT id, live = 1 AND expires_at > ?1 FROM hapax_jobs \
                 WHERE look_at <= ?1 ORDER BY look_at LIMIT 1",
            )?
            .query_row([stored(now.0)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        match found {
            Some((job, true)) => {
                connection
                    .prepare_cached("UPDATE hapax_jobs SET look_at = expires_at WHERE id = ?1")?
                    .execute([job])?;
            }
            Some((job, false)) => {
                // A clock that goes back must not show half a log.
                connection
                    .prepare_cached("UPDATE hapax_jobs SET live = 0 WHERE id = ?1 AND live = 1")?
                    .execute([job])?;
                return Ok(Some(job));
            }
            None => break,
        }
    }
    Ok(None)
}

fn delete_entries(connection: &Connection, job: i64, at_most: usize) -> rusqlite::Result<usize> {
    // The oldest first: what is left is always the end of the log.
    let last: Option<(i64, Option<u16>, i64)> = connection
        .prepare_cached(
            "SELECT id, partition, offset FROM \
                (SELECT id, partition, offset FROM hapax_entries WHERE job = ?1 \
                 ORDER BY offset LIMIT ?2) \
             ORDER BY offset DESC LIMIT 1",
        )?
        .query_row(params![job, stored(at_most as u64)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((id, partition, offset)) = last else { return Ok(0) };
    // What was trimmed before was forgotten then.
    if let Some(partition) = partition {
        forgotten(connection, partition, id)?;
    }
    connection
        .prepare_cached("DELETE FROM hapax_entries WHERE job = ?1 AND offset <= ?2")?
        .execute(params![job, offset])
}
