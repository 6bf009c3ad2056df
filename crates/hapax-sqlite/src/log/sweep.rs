//! Deleting expired jobs.

use hapax_core::{StoreError, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use super::append::note_forgotten;
use crate::error::store_error;
use crate::row::to_i64;

/// Deletes up to `entries` entries of one expired job, and the job with its last entry. Returns the
/// number of deleted rows, or `None` if no job has expired.
pub(crate) fn sweep_job(
    connection: &Connection,
    now: Timestamp,
    entries: usize,
) -> Result<Option<usize>, StoreError> {
    let sweep = || -> rusqlite::Result<Option<usize>> {
        let Some(job) = next_expired_job(connection, now)? else { return Ok(None) };
        let gone = delete_entries(connection, job, entries)?;
        if gone < entries {
            connection.prepare_cached("DELETE FROM hapax_jobs WHERE id = ?1")?.execute([job])?;
        }
        Ok(Some(gone + 1))
    };
    sweep().map_err(store_error)
}

/// How many jobs that are still alive one call postpones.
const MAX_POSTPONED: usize = 1000;

/// The next expired job. `look_at` of a job that had events meanwhile is moved to its new expiry.
fn next_expired_job(connection: &Connection, now: Timestamp) -> rusqlite::Result<Option<i64>> {
    for _ in 0..MAX_POSTPONED {
        let found: Option<(i64, bool)> = connection
            .prepare_cached(
                "SELECT id, live = 1 AND expires_at > ?1 FROM hapax_jobs \
                 WHERE look_at <= ?1 ORDER BY look_at LIMIT 1",
            )?
            .query_row([to_i64(now.0)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        match found {
            Some((job, true)) => {
                connection
                    .prepare_cached("UPDATE hapax_jobs SET look_at = expires_at WHERE id = ?1")?
                    .execute([job])?;
            }
            Some((job, false)) => {
                // Should the clock go back, the half-deleted log must not show.
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
    // Oldest first, so that the rest is always the end of the log.
    let last: Option<(i64, Option<u16>, i64)> = connection
        .prepare_cached(
            "SELECT id, partition, offset FROM \
                (SELECT id, partition, offset FROM hapax_entries WHERE job = ?1 \
                 ORDER BY offset LIMIT ?2) \
             ORDER BY offset DESC LIMIT 1",
        )?
        .query_row(params![job, to_i64(at_most as u64)], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()?;
    let Some((id, partition, offset)) = last else { return Ok(0) };
    // Trimmed entries have no partition: their loss was noted when they were trimmed.
    if let Some(partition) = partition {
        note_forgotten(connection, partition, id)?;
    }
    connection
        .prepare_cached("DELETE FROM hapax_entries WHERE job = ?1 AND offset <= ?2")?
        .execute(params![job, offset])
}
