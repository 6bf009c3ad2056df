//! Reading one job from a cursor on.

use bytes::Bytes;
use hapax_core::log::{Attached, FoundSeq, JobHead, LogEntry, PageRequest, SeqSearch};
use hapax_core::{Key, StoreResult};
use rusqlite::{Row, params};

use super::job::JobRow;
use crate::session::{Session, UnsignedColumns, to_i64};

pub(crate) fn attach(
    session: Session<'_>,
    job: &Key,
    page: &PageRequest,
) -> StoreResult<Option<Attached>> {
    let now = session.now()?;
    let Some(job_row) = JobRow::read(session, job)?.filter(|job_row| !job_row.is_expired(now))
    else {
        return Ok(None);
    };
    let from = job_row.first.max(page.after.saturating_add(1));
    let decode = |row: &Row<'_>| decode_entry(&job_row, row);
    let mut bytes = 0_usize;
    // Ends the query before the entry that would be too much; later rows are not even read.
    let entries = session.some(
        "SELECT offset, stage, seq, closes, payload FROM hapax_entries \
         WHERE job = ?1 AND offset >= ?2 ORDER BY offset LIMIT ?3",
        params![job_row.id, to_i64(from), to_i64(page.max_entries as u64)],
        |row| {
            let is_first = bytes == 0;
            // At least 1, so that an empty payload counts as the first entry too.
            bytes = bytes.saturating_add(row.get_ref(4)?.as_blob()?.len().max(1));
            if is_first || bytes <= page.max_bytes { decode(row).map(Some) } else { Ok(None) }
        },
    )?;
    let sql = "SELECT offset, stage, seq, closes, payload FROM hapax_entries WHERE id = ?1";
    let state = match page.with_state {
        true => Some(session.one(sql, [job_row.state], decode)?),
        false => None,
    };
    let head = JobHead {
        first: job_row.first,
        last: job_row.last,
        closed: job_row.closed,
        expires_in: job_row.expires_at.since(now),
        state,
        epochs: job_row.epochs,
    };
    Ok(Some(Attached { head, entries }))
}

pub(crate) fn find_seq(
    session: Session<'_>,
    job: &Key,
    seq: u64,
) -> StoreResult<Option<SeqSearch>> {
    let now = session.now()?;
    let Some(job_row) = JobRow::read(session, job)?.filter(|job_row| !job_row.is_expired(now))
    else {
        return Ok(None);
    };
    let found: Option<(u64, u64)> = session.first(
        "SELECT offset, seq FROM hapax_entries \
         WHERE job = ?1 AND offset >= ?2 AND seq <= ?3 ORDER BY seq DESC, offset LIMIT 1",
        params![job_row.id, to_i64(job_row.first), to_i64(seq)],
        |row| Ok((row.unsigned(0)?, row.unsigned(1)?)),
    )?;
    let found = found.map(|(offset, seq)| FoundSeq { seq, at: job_row.at(offset) });
    Ok(Some(SeqSearch { first: job_row.first, found }))
}

fn decode_entry(job_row: &JobRow, row: &Row<'_>) -> rusqlite::Result<LogEntry> {
    Ok(LogEntry {
        at: job_row.at(row.unsigned(0)?),
        stage: row.get_ref(1)?.as_str()?.into(),
        seq: row.unsigned(2)?,
        closes: row.get(3)?,
        payload: Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?),
    })
}
