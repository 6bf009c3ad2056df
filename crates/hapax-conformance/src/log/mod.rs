//! The laws of `Log`.

mod append;
mod failover;
mod page;
mod retention;
mod tail;

use bytes::Bytes;
use hapax_core::log::{Appended, Attached, Cursor, LogEntry, LogEvent, LogRetention, PageRequest};
use hapax_core::{Fingerprint, Key};

use crate::context::{LONG, LawContext};
use crate::suite::Law;
pub(crate) use failover::LAWS as FAILOVER_LAWS;
pub use failover::{FailoverServer, FailoverStore};

pub(crate) fn laws() -> Vec<Law> {
    [append::LAWS, page::LAWS, retention::LAWS, tail::LAWS, failover::LAWS].concat()
}

pub(crate) const KEEP: LogRetention = LogRetention { retention: LONG, max_entries: 10_000 };

/// More than any law appends.
pub(crate) const ALL: usize = 10_000;

pub(crate) fn event(job: &Key, stage: &str, seq: u64) -> LogEvent {
    event_with_payload(job, stage, seq, format!("{stage} {seq}").into())
}

pub(crate) fn event_with_payload(job: &Key, stage: &str, seq: u64, payload: Bytes) -> LogEvent {
    let fingerprint = Fingerprint::of(&[&payload]);
    LogEvent { job: job.clone(), stage: stage.into(), seq, fingerprint, payload, closes: false }
}

pub(crate) fn closing(event: LogEvent) -> LogEvent {
    LogEvent { closes: true, ..event }
}

/// The entry that a reader gets for an event appended at this cursor.
pub(crate) fn entry(event: &LogEvent, at: Cursor) -> LogEntry {
    let LogEvent { stage, seq, closes, payload, .. } = event.clone();
    LogEntry { at, stage, seq, closes, payload }
}

/// Appends with the given retention and size.
async fn append_with(s: &LawContext, events: &[LogEvent], keep: &LogRetention) -> Vec<Appended> {
    let answers = s.store.append(events, keep).await.expect("the store answers");
    assert_eq!(answers.len(), events.len(), "one answer each");
    answers
}

async fn append(s: &LawContext, events: &[LogEvent]) -> Vec<Appended> {
    append_with(s, events, &KEEP).await
}

/// Appends events that must be new, and returns their cursors.
async fn published(s: &LawContext, events: &[LogEvent]) -> Vec<Cursor> {
    let at = |answer| match answer {
        Appended::Published(at) => at,
        other => panic!("expected it to be new, got {other:?}"),
    };
    append(s, events).await.into_iter().map(at).collect()
}

async fn attach_page(s: &LawContext, job: &Key, page: &PageRequest) -> Option<Attached> {
    s.store.attach(job, page).await.expect("the store answers")
}

async fn attach(s: &LawContext, job: &Key, after: u64, at_most: usize) -> Option<Attached> {
    attach_page(s, job, &PageRequest::new(after, at_most).with_state()).await
}

/// All entries of a job that must exist.
async fn attach_all(s: &LawContext, job: &Key) -> Attached {
    attach(s, job, 0, ALL).await.expect("the job has a log")
}

fn offsets(attached: &Attached) -> Vec<u64> {
    attached.entries.iter().map(|entry| entry.at.offset).collect()
}
