//! Reading one job from a cursor on.

use std::time::Duration;

use hapax_core::Key;
use hapax_core::log::{
    Attached, Cursor, Epochs, FoundSeq, JobHead, LogEntry, PageRequest, SeqSearch,
};

use crate::connect::session::{Params, SqlRow, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row;

pub(crate) async fn attach<S: SqlSession>(
    session: &mut S,
    job: &Key,
    page: &PageRequest,
) -> SqlResult<Option<Attached>> {
    let (tenant, domain, name) = (job.tenant().as_str(), job.scope(), job.name());
    let after = row::to_i64(page.after).min(super::tail::END);
    let [entries, bytes] =
        [page.max_entries, page.max_bytes].map(|limit| row::to_i64(limit as u64));
    let sql = include_str!("../sql/attach.sql");
    let params: Params<'_> = &[&tenant, &domain, &name, &after, &entries, &bytes, &page.with_state];
    let rows = session.rows(sql, params).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let epochs = job_epochs(found)?;
    let mut state = None;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        match row.try_get::<Option<bool>>("is_state")? {
            Some(true) => state = Some(decode_entry(&epochs, row)?),
            Some(false) => entries.push(decode_entry(&epochs, row)?),
            // The head alone.
            None => {}
        }
    }
    if page.with_state && state.is_none() {
        return Err(corrupt("a job without its state").into());
    }
    let head = JobHead {
        epochs,
        first: row::number(found, "first")?,
        last: row::number(found, "last")?,
        closed: found.try_get("closed")?,
        state,
        expires_in: Duration::from_millis(row::number(found, "time_left")?),
    };
    Ok(Some(Attached { head, entries }))
}

pub(crate) async fn find_seq<S: SqlSession>(
    session: &mut S,
    job: &Key,
    seq: u64,
) -> SqlResult<Option<SeqSearch>> {
    let (tenant, domain, name) = (job.tenant().as_str(), job.scope(), job.name());
    let sql = include_str!("../sql/find_seq.sql");
    let rows = session.rows(sql, &[&tenant, &domain, &name, &row::to_i64(seq)]).await?;
    let Some(row) = rows.first() else { return Ok(None) };
    let found = match row.try_get::<Option<i64>>("place")? {
        Some(place) => {
            let (offset, seq) = (place.unsigned_abs(), row::number(row, "seq")?);
            Some(FoundSeq { seq, at: Cursor { epoch: job_epochs(row)?.at(offset), offset } })
        }
        None => None,
    };
    Ok(Some(SeqSearch { first: row::number(row, "first")?, found }))
}

fn decode_entry(epochs: &Epochs, row: &SqlRow) -> SqlResult<LogEntry> {
    let offset = row::number(row, "place")?;
    Ok(LogEntry {
        at: Cursor { epoch: epochs.at(offset), offset },
        stage: row.try_get::<&str>("stage")?.into(),
        seq: row::number(row, "seq")?,
        closes: row.try_get("closes")?,
        payload: row::bytes(row, "payload")?,
    })
}

/// The epochs of a job. A new one begins with another timeline or another cluster, and then acknowledged entries may
/// be lost: a restart or a crash alone changes neither.
fn job_epochs(row: &SqlRow) -> SqlResult<Epochs> {
    Ok(epochs(row)?.with_lossy_turns())
}

pub(super) fn epochs(row: &SqlRow) -> SqlResult<Epochs> {
    let text: &str = row.try_get("epochs")?;
    Ok(text.parse().map_err(|_| corrupt("the epochs of a log"))?)
}
