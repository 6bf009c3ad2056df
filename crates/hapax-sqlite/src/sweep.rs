//! Deletes what has expired.

use hapax_core::StoreResult;
use rusqlite::params;

use crate::log::sweep_job;
use crate::session::{Session, to_i64};

/// How many entries of a job are deleted as one piece.
const PIECE: usize = 1000;
/// How many rows of jobs one transaction deletes, which bounds the wait of other calls.
const MAX_ROWS: usize = 2000;

/// The tables with rows that expire on their own.
const DELETE_EXPIRED: [&str; 3] = [
    "DELETE FROM hapax_claims WHERE rowid IN (SELECT rowid FROM hapax_claims \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_records WHERE rowid IN (SELECT rowid FROM hapax_records \
     WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)",
    "DELETE FROM hapax_outbox WHERE seq IN (SELECT seq FROM hapax_outbox \
     WHERE state = 6 AND forget_at <= ?1 ORDER BY forget_at LIMIT ?2)",
];

/// The result of one sweep transaction.
pub(crate) struct SweptRows {
    /// Deleted claims, records, done items and jobs (large jobs count once per piece).
    pub(crate) count: u64,
    /// Whether expired jobs may be left.
    pub(crate) more: bool,
}

/// Deletes at most `at_most` expired claims, records, items and jobs, the oldest first. Fences go on
/// growing, because their sequence is not in these rows.
pub(crate) fn sweep(session: Session<'_>, at_most: u64) -> StoreResult<SweptRows> {
    let (now, mut count) = (session.now(), 0);
    for sql in DELETE_EXPIRED {
        count += session.execute(sql, params![to_i64(now.0), to_i64(at_most - count)])? as u64;
    }
    let mut rows = 0;
    while count < at_most && rows < MAX_ROWS {
        match sweep_job(session, now, PIECE)? {
            Some(gone) => rows += gone,
            None => return Ok(SweptRows { count, more: false }),
        }
        count += 1;
    }
    Ok(SweptRows { count, more: true })
}
