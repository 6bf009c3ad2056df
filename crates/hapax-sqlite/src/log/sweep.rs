//! Deleting expired jobs.

use hapax_core::{StoreResult, Timestamp};
use rusqlite::params;

use super::append::note_forgotten;
use crate::session::{Session, to_i64};

/// The result of [`sweep_job`] for one job.
pub(crate) enum SweptJob {
    /// The job had events meanwhile. The sweep looks at it again when it will have expired.
    Postponed,
    /// So many entries were deleted, and the job with its last entry.
    Deleted { entries: usize },
}

/// Deletes up to `entries` entries of the next job that the sweep has to look at, or postpones it.
/// Returns `None` if there is no such job.
pub(crate) fn sweep_job(
    session: Session<'_>,
    now: Timestamp,
    entries: usize,
) -> StoreResult<Option<SweptJob>> {
    let found: Option<(i64, bool)> = session.first(
        "SELECT id, live = 1 AND expires_at > ?1 FROM hapax_jobs \
         WHERE look_at <= ?1 ORDER BY look_at LIMIT 1",
        [to_i64(now.0)],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    let Some((job, is_alive)) = found else { return Ok(None) };
    if is_alive {
        session.execute("UPDATE hapax_jobs SET look_at = expires_at WHERE id = ?1", [job])?;
        return Ok(Some(SweptJob::Postponed));
    }
    // Should the clock go back, the half-deleted log must not show.
    session.execute("UPDATE hapax_jobs SET live = 0 WHERE id = ?1 AND live = 1", [job])?;
    let deleted = delete_entries(session, job, entries)?;
    if deleted < entries {
        session.execute("DELETE FROM hapax_jobs WHERE id = ?1", [job])?;
    }
    Ok(Some(SweptJob::Deleted { entries: deleted }))
}

fn delete_entries(session: Session<'_>, job: i64, at_most: usize) -> StoreResult<usize> {
    // Oldest first, so that the rest is always the end of the log.
    let last: Option<(i64, Option<u16>, i64)> = session.first(
        "SELECT id, partition, offset FROM \
            (SELECT id, partition, offset FROM hapax_entries WHERE job = ?1 \
             ORDER BY offset LIMIT ?2) \
         ORDER BY offset DESC LIMIT 1",
        params![job, to_i64(at_most as u64)],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    let Some((id, partition, offset)) = last else { return Ok(0) };
    // Trimmed entries have no partition: their loss was noted when they were trimmed.
    if let Some(partition) = partition {
        note_forgotten(session, partition, id)?;
    }
    let sql = "DELETE FROM hapax_entries WHERE job = ?1 AND offset <= ?2";
    session.execute(sql, params![job, offset])
}
