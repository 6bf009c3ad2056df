use std::time::Duration;

use bytes::Bytes;
use hapax_core::log::{Attached, Cursor, Epochs, JobHead, LogEntry, PageRequest};
use hapax_core::{Key, StoreError, StoreResult};

use super::cursor;
use crate::script::ATTACH;
use crate::store::RedisStore;

/// More than a job holds, and exact in Lua's numbers.
const MAX_NUMBER: usize = 1 << 40;

/// The job's `now`, its state if that was asked for, ms to live, first offset, entries.
type AttachReply = (String, Option<Vec<u8>>, i64, u64, Vec<Option<Vec<u8>>>);

pub(super) async fn attach(
    store: &RedisStore,
    job: &Key,
    page: &PageRequest,
) -> StoreResult<Option<Attached>> {
    let name = store.job_name(job);
    let [entries, bytes] =
        [page.max_entries, page.max_bytes].map(|limit| limit.min(MAX_NUMBER).to_string());
    let with_state: &[u8] = if page.with_state { b"1" } else { b"0" };
    let after = page.after.to_string();
    let args = [after.as_bytes(), entries.as_bytes(), bytes.as_bytes(), with_state];
    let reply = store.client.run(&ATTACH, &[&name], &args).await?;
    match reply.read::<Option<AttachReply>>()? {
        Some(reply) => parse_job(reply).map(Some).ok_or_else(corrupt_job),
        None => Ok(None),
    }
}

pub(super) fn corrupt_job() -> StoreError {
    StoreError::Corrupt {
        reason: "a part of the job is missing or was not written by hapax".into(),
    }
}

fn parse_job((now, state, left, from, entries): AttachReply) -> Option<Attached> {
    let fields: Vec<_> = now.split(' ').collect();
    let [last, _, top, closed, _, first, epochs] = fields[..] else { return None };
    let epochs: Epochs = epochs.parse().ok()?;
    let (first, last, top) = (first.parse().ok()?, last.parse().ok()?, top.parse().ok()?);
    let entry = |offset, text: Vec<u8>| parse_entry(cursor(&epochs, offset), text);
    let entries = (from..).zip(entries).map(|(offset, text)| entry(offset, text?));
    let entries: Vec<LogEntry> = entries.collect::<Option<_>>()?;
    let state = match state {
        Some(text) => Some(entry(top, text)?),
        None => None,
    };
    let expires_in = Duration::from_millis(u64::try_from(left).unwrap_or(0));
    let head = JobHead { epochs, first, last, closed: closed == "1", state, expires_in };
    Some(Attached { head, entries })
}

/// Parses `<seq> <closes> <stage>\n<payload>`.
fn parse_entry(at: Cursor, text: Vec<u8>) -> Option<LogEntry> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let fields = std::str::from_utf8(&text[..end]).ok()?;
    let mut fields = fields.splitn(3, ' ');
    let seq = fields.next()?.parse().ok()?;
    let closes = fields.next()? == "1";
    let stage = fields.next()?.into();
    Some(LogEntry { at, stage, seq, closes, payload: Bytes::from(text).slice(end + 1..) })
}
