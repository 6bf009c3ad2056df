//! Reading one job from a cursor on.

use bytes::Bytes;
use hapax_core::log::{Attached, JobHead, LogEntry};
use hapax_core::{Clock, Key, StoreError};
use rusqlite::{Connection, Row, params};

use super::job::JobRow;
use crate::error::column_error;
use crate::row::to_i64;

pub(crate) fn attach(
    connection: &Connection,
    clock: &dyn Clock,
    job: &Key,
    after: u64,
    at_most: usize,
) -> Result<Option<Attached>, StoreError> {
    let now = clock.now();
    let Some(job_row) = JobRow::read(connection, job)?.filter(|job_row| !job_row.is_expired(now))
    else {
        return Ok(None);
    };
    let entries = read_entries(connection, &job_row, after, at_most).map_err(column_error)?;
    let state = connection
        .prepare_cached(
            "SELECT offset, stage, seq, closes, payload FROM hapax_entries WHERE id = ?1",
        )
        .and_then(|mut query| query.query_row([job_row.state], |row| decode_entry(&job_row, row)))
        .map_err(column_error)?;
    let head = JobHead {
        first: job_row.first,
        last: job_row.last,
        closed: job_row.closed,
        expires_in: job_row.expires_at.since(now),
        epochs: job_row.epochs,
        state,
    };
    Ok(Some(Attached { head, entries }))
}

fn read_entries(
    connection: &Connection,
    job_row: &JobRow,
    after: u64,
    at_most: usize,
) -> rusqlite::Result<Vec<LogEntry>> {
    let from = job_row.first.max(after.saturating_add(1));
    connection
        .prepare_cached(
            "SELECT offset, stage, seq, closes, payload FROM hapax_entries \
             WHERE job = ?1 AND offset >= ?2 ORDER BY offset LIMIT ?3",
        )?
        .query_map(params![job_row.id, to_i64(from), to_i64(at_most as u64)], |row| {
            decode_entry(job_row, row)
        })?
        .collect()
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
