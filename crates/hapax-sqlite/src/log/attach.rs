//! Reading one job from a cursor on.

use bytes::Bytes;
use hapax_core::log::{Attached, JobHead, LogEntry};
use hapax_core::{Key, StoreResult};
use rusqlite::{Row, params};

use super::job::JobRow;
use crate::session::{Session, to_i64};

pub(crate) fn attach(
    session: Session<'_>,
    job: &Key,
    after: u64,
    at_most: usize,
) -> StoreResult<Option<Attached>> {
    let now = session.now();
    let Some(job_row) = JobRow::read(session, job)?.filter(|job_row| !job_row.is_expired(now))
    else {
        return Ok(None);
    };
    let from = job_row.first.max(after.saturating_add(1));
    let decode = |row: &Row<'_>| decode_entry(&job_row, row);
    let entries = session.all(
        "SELECT offset, stage, seq, closes, payload FROM hapax_entries \
         WHERE job = ?1 AND offset >= ?2 ORDER BY offset LIMIT ?3",
        params![job_row.id, to_i64(from), to_i64(at_most as u64)],
        decode,
    )?;
    let sql = "SELECT offset, stage, seq, closes, payload FROM hapax_entries WHERE id = ?1";
    let head = JobHead {
        first: job_row.first,
        last: job_row.last,
        closed: job_row.closed,
        expires_in: job_row.expires_at.since(now),
        state: session.one(sql, [job_row.state], decode)?,
        epochs: job_row.epochs,
    };
    Ok(Some(Attached { head, entries }))
}

fn decode_entry(job_row: &JobRow, row: &Row<'_>) -> rusqlite::Result<LogEntry> {
    Ok(LogEntry {
        at: job_row.at(row.get(0)?),
        stage: row.get_ref(1)?.as_str()?.into(),
        seq: row.get(2)?,
        closes: row.get(3)?,
        payload: Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?),
    })
}
