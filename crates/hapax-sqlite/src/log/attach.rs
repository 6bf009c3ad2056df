//! Reading one job from a cursor on.

use bytes::Bytes;
use hapax_core::log::{Attached, JobHead, LogEntry};
use hapax_core::{Clock, Key, StoreError};
use rusqlite::{Connection, Row, params};

use super::job::Life;
use crate::row::{damaged, stored};

pub(crate) fn attach(
    connection: &Connection,
    clock: &dyn Clock,
    job: &Key,
    after: u64,
    at_most: usize,
) -> Result<Option<Attached>, StoreError> {
    let now = clock.now();
    let Some(life) = Life::read(connection, job)?.filter(|life| !life.is_over(now)) else {
        return Ok(None);
    };
    let entries = entries(connection, &life, after, at_most).map_err(damaged)?;
    let state = connection
        .prepare_cached(
            "SELECT offset, stage, seq, closes, payload FROM hapax_entries WHERE id = ?1",
        )
        .and_then(|mut query| query.query_row([life.state], |row| entry(&life, row)))
        .map_err(damaged)?;
    let head = JobHead {
        first: life.first,
        last: life.last,
        closed: life.closed,
        expires_in: life.expires_at.since(now),
        epochs: life.epochs,
        state,
    };
    Ok(Some(Attached { head, entries }))
}

fn entries(
    connection: &Connection,
    life: &Life,
    after: u64,
    at_most: usize,
) -> rusqlite::Result<Vec<LogEntry>> {
    let from = life.first.max(after.saturating_add(1));
    connection
        .prepare_cached(
            "SELECT offset, stage, seq, closes, payload FROM hapax_entries \
             WHERE job = ?1 AND offset >= ?2 ORDER BY offset LIMIT ?3",
        )?
        .query_map(params![life.id, stored(from), stored(at_most as u64)], |row| entry(life, row))?
        .collect()
}

fn entry(life: &Life, row: &Row<'_>) -> rusqlite::Result<LogEntry> {
    Ok(LogEntry {
        at: life.at(row.get(0)?),
        stage: row.get_ref(1)?.as_str()?.into(),
        seq: row.get(2)?,
        closes: row.get(3)?,
        payload: Bytes::copy_from_slice(row.get_ref(4)?.as_blob()?),
    })
}
