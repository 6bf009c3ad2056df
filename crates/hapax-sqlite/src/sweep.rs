//! Deletes what has expired.

use hapax_core::{StoreResult, Swept};
use rusqlite::params;

use crate::log::{SweptJob, sweep_job};
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

/// One sweep transaction: deletes at most `at_most` expired claims, records, items and jobs, the oldest first. Fences go on
/// growing, because their sequence is not in these rows.
pub(crate) fn sweep(session: Session<'_>, at_most: u64) -> StoreResult<Swept> {
    let (now, mut count) = (session.now()?, 0);
    for sql in DELETE_EXPIRED {
        count += session.execute(sql, params![to_i64(now.0), to_i64(at_most - count)])? as u64;
    }
    let mut rows = 0;
    while count < at_most && rows < MAX_ROWS {
        match sweep_job(session, now, PIECE)? {
            None => return Ok(Swept { count, more: false }),
            Some(SweptJob::Postponed) => rows += 1,
            Some(SweptJob::Deleted { entries }) => {
                rows += entries + 1;
                count += 1;
            }
        }
    }
    Ok(Swept { count, more: true })
}
