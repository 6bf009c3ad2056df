//! Reading one job from a cursor on.

use std::time::Duration;

use hapax_core::Key;
use hapax_core::log::{Attached, Cursor, Epoch, Epochs, JobHead, LogEntry};

use crate::connect::session::{SqlRow, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row;

pub(crate) async fn attach<S: SqlSession>(
    session: &mut S,
    job: &Key,
    after: u64,
    at_most: usize,
) -> SqlResult<Option<Attached>> {
    let (tenant, domain, name) = (job.tenant().as_str(), job.scope(), job.name());
    let (after, at_most) = (row::to_i64(after).min(super::tail::END), row::to_i64(at_most as u64));
    let sql = include_str!("../sql/attach.sql");
    let rows = session.rows(sql, &[&tenant, &domain, &name, &after, &at_most]).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let mut state = None;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        match row.try_get("is_state")? {
            true => state = Some(decode_entry(row)?),
            false => entries.push(decode_entry(row)?),
        }
    }
    let head = JobHead {
        epochs: epochs(found)?,
        first: row::number(found, "first")?,
        last: row::number(found, "last")?,
        closed: found.try_get("closed")?,
        state: state.ok_or_else(|| corrupt("a job without its state"))?,
        expires_in: Duration::from_millis(row::number(found, "time_left")?),
    };
    Ok(Some(Attached { head, entries }))
}

fn decode_entry(row: &SqlRow) -> SqlResult<LogEntry> {
    let (epoch, offset) = (Epoch(row::number(row, "epoch")?), row::number(row, "place")?);
    Ok(LogEntry {
        at: Cursor { epoch, offset },
        stage: row.try_get::<&str>("stage")?.into(),
        seq: row::number(row, "seq")?,
        closes: row.try_get("closes")?,
        payload: row::bytes(row, "payload")?,
    })
}

pub(super) fn epochs(row: &SqlRow) -> SqlResult<Epochs> {
    let text: &str = row.try_get("epochs")?;
    Ok(text.parse().map_err(|_| corrupt("the epochs of a log"))?)
}
