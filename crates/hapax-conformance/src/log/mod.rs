//! The laws of `Log`, one function each; its name is the sentence that it proves.

mod appending;
mod keeping;
mod tailing;

use bytes::Bytes;
use hapax_core::log::{Appended, Attached, Cursor, LogEntry, LogEvent, LogRetention};
use hapax_core::{Fingerprint, Key};

use crate::scene::{LONG, Scene};
use crate::subject::Law;

pub(crate) fn laws() -> Vec<Law> {
    [appending::LAWS, keeping::LAWS, tailing::LAWS].concat()
}

pub(crate) const KEEP: LogRetention = LogRetention { retention: LONG, max_entries: 10_000 };

/// More than any law appends.
pub(crate) const ALL: usize = 10_000;

pub(crate) fn event(job: &Key, stage: &str, seq: u64) -> LogEvent {
    saying(job, stage, seq, format!("{stage} {seq}").into())
}

pub(crate) fn saying(job: &Key, stage: &str, seq: u64, payload: Bytes) -> LogEvent {
    let fingerprint = Fingerprint::of(&[&payload]);
    LogEvent { job: job.clone(), stage: stage.into(), seq, fingerprint, payload, closes: false }
}

pub(crate) fn closing(event: LogEvent) -> LogEvent {
    LogEvent { closes: true, ..event }
}

/// What a reader gets of an event that was appended at this place.
pub(crate) fn entry(event: &LogEvent, at: Cursor) -> LogEntry {
    let LogEvent { stage, seq, closes, payload, .. } = event.clone();
    LogEntry { at, stage, seq, closes, payload }
}

/// Appends with the given lifetime and size.
async fn keeping(s: &Scene, events: &[LogEvent], keep: &LogRetention) -> Vec<Appended> {
    let answers = s.store.append(events, keep).await.expect("the store answers");
    assert_eq!(answers.len(), events.len(), "one answer each");
    answers
}

async fn append(s: &Scene, events: &[LogEvent]) -> Vec<Appended> {
    keeping(s, events, &KEEP).await
}

/// Appends what must be new, and tells where it is.
async fn published(s: &Scene, events: &[LogEvent]) -> Vec<Cursor> {
    let at = |answer| match answer {
        Appended::Published(at) => at,
        other => panic!("expected it to be new, got {other:?}"),
    };
    append(s, events).await.into_iter().map(at).collect()
}

async fn attach(s: &Scene, job: &Key, after: u64, at_most: usize) -> Option<Attached> {
    s.store.attach(job, after, at_most).await.expect("the store answers")
}

/// Everything that is kept of a job which must be there.
async fn whole(s: &Scene, job: &Key) -> Attached {
    attach(s, job, 0, ALL).await.expect("the job has a log")
}

fn offsets(attached: &Attached) -> Vec<u64> {
    attached.entries.iter().map(|entry| entry.at.offset).collect()
}
