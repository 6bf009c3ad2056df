//! What the clients, the resources and the fault injectors of a run saw, in a form that can be stored and checked again.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

/// One observation with its interval, in microseconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HistoryEntry {
    /// When the call was sent, or the fault began.
    pub from: u64,
    /// When its answer was known, or the client gave up, or the fault ended.
    pub to: u64,
    /// The client that made the call; numbers of one workload do not overlap with those of another.
    pub client: u32,
    /// The call or event itself.
    pub what: Observation,
}

/// How a call ended for its client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum CallOutcome<T> {
    /// It was done, with this result.
    Done(T),
    /// It was refused with this problem code: it changed nothing.
    Refused(String),
    /// It may or may not have been done, then or later.
    Unknown(String),
}

impl<T> CallOutcome<T> {
    /// The result of a call that was done.
    pub fn done(&self) -> Option<&T> {
        match self {
            Self::Done(result) => Some(result),
            Self::Refused(_) | Self::Unknown(_) => None,
        }
    }

    /// Whether it was surely not done.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused(_))
    }

    /// The same outcome with another result.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> CallOutcome<U> {
        match self {
            Self::Done(result) => CallOutcome::Done(change(result)),
            Self::Refused(code) => CallOutcome::Refused(code),
            Self::Unknown(code) => CallOutcome::Unknown(code),
        }
    }
}

/// The position of an event in its job. The epoch is first, so that positions sort across epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogPosition {
    /// The log's epoch.
    pub epoch: u64,
    /// The offset within the job.
    pub offset: u64,
}

/// The stored value of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenRecord {
    /// The ETag.
    pub version: String,
    /// The number that the writer chose for this write; no two writes have the same.
    pub value: u64,
}

/// What a begun command was told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CommandAnswer {
    /// The caller runs it.
    Granted {
        /// The attempt's number.
        attempt: u64,
        /// The fence of the attempt.
        fence: u64,
    },
    /// It has run, and this is its answer.
    Replayed(String),
}

/// A frame of an event stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SeenFrame {
    /// The follower exists, and has seen nothing yet.
    Start,
    /// An event of a stage with its seq.
    Event(String, u64, LogPosition),
    /// Events were lost, and the stream says so.
    Gap,
    /// The connection ended right behind a gap, which has no id: the follower comes back with the cursor that it had before.
    CutBehindGap,
    /// The state after a gap.
    Snapshot(LogPosition),
    /// The stream ended after the last event.
    End,
}

/// The answer to a keyed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProxyAnswer {
    /// Its body.
    pub body: String,
    /// Whether the proxy said that it came from the store.
    pub replayed: bool,
}

/// One call, effect or fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the variants say what their fields are")]
pub enum Observation {
    /// A client asked for a lock; its fence.
    LockTake { key: String, ttl_ms: u64, outcome: CallOutcome<u64> },
    /// The owner renewed it.
    LockRenew { key: String, fence: u64, ttl_ms: u64, outcome: CallOutcome<()> },
    /// The owner released it.
    LockRelease { key: String, fence: u64, outcome: CallOutcome<()> },
    /// The owner wrote to the resource, which refuses fences below the largest that it has seen.
    FencedWrite { key: String, fence: u64, accepted: bool },
    /// A record was read; `None` if there was none.
    RecordGet { key: String, outcome: CallOutcome<Option<SeenRecord>> },
    /// A record was written in place of this version, or of none; its new version.
    RecordPut { key: String, expected: Option<String>, value: u64, outcome: CallOutcome<String> },
    /// A record of this version was deleted.
    RecordDelete { key: String, expected: String, outcome: CallOutcome<()> },
    /// A command was begun.
    CommandBegin {
        key: String,
        fingerprint: String,
        rerun: bool,
        lease_ms: u64,
        outcome: CallOutcome<CommandAnswer>,
    },
    /// The owner of an attempt renewed its lease.
    CommandRenew { key: String, attempt: u64, lease_ms: u64, outcome: CallOutcome<()> },
    /// The owner of an attempt had its effect.
    CommandEffect { key: String, attempt: u64 },
    /// The owner of an attempt stored this answer.
    CommandComplete { key: String, attempt: u64, body: String, outcome: CallOutcome<()> },
    /// The owner of an attempt reported that it failed.
    CommandFail { key: String, attempt: u64, outcome: CallOutcome<()> },
    /// An event was published.
    Publish { job: String, stage: String, seq: u64, outcome: CallOutcome<LogPosition> },
    /// A follower of a job got a frame.
    Followed { job: String, frame: SeenFrame },
    /// A keyed request went through the proxy.
    ProxyRequest { key: String, outcome: CallOutcome<ProxyAnswer> },
    /// The service behind the proxy acted.
    UpstreamEffect { key: String },
    /// A transaction with an outbox row ended; `Refused` if it was rolled back.
    OutboxCommit { id: String, key: String, outcome: CallOutcome<()> },
    /// The webhook got a message.
    Delivery { id: String },
    /// The effect of a message was found in the consumer's database at the end.
    InboxEffect { id: String },
    /// A transaction with an outbox row for the broker ended; `Refused` if it was rolled back.
    BrokerCommit { id: String, key: String, outcome: CallOutcome<()> },
    /// The broker's consumer got a message.
    BrokerDelivery { id: String },
    /// The effect of a message of the broker was found in the consumer's database at the end.
    BrokerEffect { id: String },
    /// A client tried a transaction with claim, effect and answer; `effect` is what it inserted, whatever became of it.
    Transaction { key: String, effect: Option<u64>, outcome: CallOutcome<String> },
    /// An effect that was found in the clients' table at the end.
    TransactionEffect { key: String, effect: u64 },
    /// A webhook of LINE with one event of a source.
    LineWebhook { source: String, event: String, outcome: CallOutcome<()> },
    /// The bot got an event, with the headers of the gateway; whether it answered with 200.
    LineHandled { source: String, event: String, key: String, attempt: u64, fence: u64, ok: bool },
    /// The run is on this store, which decides what may be lost, and has this seed; older histories do not name it.
    RunOn {
        store: String,
        #[serde(default)]
        seed: Option<u64>,
    },
    /// After the faults so many keys of a workload, all that were acknowledged, were asked for again and answered.
    AskedAgain { workload: String, keys: u64 },
    /// A fault, and the process or connection that it hit.
    Fault { kind: String, target: String },
}

impl Observation {
    /// The workload and the key, job or message that it is about; `None` for faults and for the run itself.
    pub fn subject(&self) -> Option<(&'static str, &str)> {
        Some(match self {
            Self::LockTake { key, .. }
            | Self::LockRenew { key, .. }
            | Self::LockRelease { key, .. }
            | Self::FencedWrite { key, .. } => ("locks", key),
            Self::RecordGet { key, .. }
            | Self::RecordPut { key, .. }
            | Self::RecordDelete { key, .. } => ("records", key),
            Self::CommandBegin { key, .. }
            | Self::CommandRenew { key, .. }
            | Self::CommandEffect { key, .. }
            | Self::CommandComplete { key, .. }
            | Self::CommandFail { key, .. } => ("commands", key),
            Self::Publish { job, .. } | Self::Followed { job, .. } => ("events", job),
            Self::ProxyRequest { key, .. } | Self::UpstreamEffect { key } => ("proxy", key),
            Self::OutboxCommit { id, .. } | Self::Delivery { id } | Self::InboxEffect { id } => {
                ("outbox", id)
            }
            Self::BrokerCommit { id, .. }
            | Self::BrokerDelivery { id }
            | Self::BrokerEffect { id } => ("broker", id),
            Self::Transaction { key, .. } | Self::TransactionEffect { key, .. } => {
                ("transactions", key)
            }
            Self::LineWebhook { source, .. } | Self::LineHandled { source, .. } => ("line", source),
            Self::RunOn { .. } | Self::AskedAgain { .. } | Self::Fault { .. } => return None,
        })
    }

    /// Whether its client does not know how it ended.
    pub fn is_unknown(&self) -> bool {
        fn unknown<T>(outcome: &CallOutcome<T>) -> bool {
            matches!(outcome, CallOutcome::Unknown(_))
        }
        match self {
            Self::LockTake { outcome, .. } => unknown(outcome),
            Self::LockRenew { outcome, .. }
            | Self::LockRelease { outcome, .. }
            | Self::RecordDelete { outcome, .. }
            | Self::CommandRenew { outcome, .. }
            | Self::CommandComplete { outcome, .. }
            | Self::CommandFail { outcome, .. }
            | Self::LineWebhook { outcome, .. }
            | Self::BrokerCommit { outcome, .. }
            | Self::OutboxCommit { outcome, .. } => unknown(outcome),
            Self::Transaction { outcome, .. } => unknown(outcome),
            Self::RecordGet { outcome, .. } => unknown(outcome),
            Self::RecordPut { outcome, .. } => unknown(outcome),
            Self::ProxyRequest { outcome, .. } => unknown(outcome),
            Self::CommandBegin { outcome, .. } => unknown(outcome),
            Self::Publish { outcome, .. } => unknown(outcome),
            _ => false,
        }
    }
}

/// Writes a history, a line of JSON for each entry.
///
/// # Errors
///
/// When the writer fails.
pub fn write_history(entries: &[HistoryEntry], mut to: impl Write) -> anyhow::Result<()> {
    for entry in entries {
        serde_json::to_writer(&mut to, entry)?;
        to.write_all(b"\n")?;
    }
    to.flush()?;
    Ok(())
}

/// Reads what [`write_history`] wrote.
///
/// # Errors
///
/// When a line is not an entry; the message has its number.
pub fn read_history(from: impl BufRead) -> anyhow::Result<Vec<HistoryEntry>> {
    let mut entries = Vec::new();
    for (number, line) in from.lines().enumerate() {
        let entry = serde_json::from_str(&line?)
            .map_err(|error| anyhow::anyhow!("line {}: {error}", number + 1))?;
        entries.push(entry);
    }
    Ok(entries)
}
