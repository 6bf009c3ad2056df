//! `Log`, the third primitive: ordered, deduplicated events of one job.

mod epochs;
mod job_head;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub use self::epochs::Epochs;
pub use self::job_head::JobHead;
use crate::{Fingerprint, Key, StoreResult, Watch};

/// The default number of partitions of a new store.
pub const PARTITIONS: u16 = 256;
/// The highest producer seq, offset or epoch: the largest that every store and every JSON reader
/// can hold.
pub const MAX_NUMBER: u64 = (1 << 53) - 1;

/// The ordered, deduplicated events of a job ([`Key::job`]), and the recent changes of all jobs.
///
/// A job's log begins with its first event, and is forgotten as a whole. The log gives its entries
/// **offsets**: 1, 2, 3, … The producer's own numbers (`seq`) may arrive late, twice or with gaps.
///
/// # Laws
///
/// 1. **Idempotent.** An event's identity is (job, stage, seq). The same identity with the same
///    content is [`Appended::Duplicate`] with the first offset; with other content (another
///    fingerprint) it is [`Appended::Conflict`]. Neither changes anything, not even the lifetime.
/// 2. **Contiguous.** The offsets of a job have no gaps and grow in the order of the appends; the
///    events of one call are appended in the order given.
/// 3. **Atomic.** Dedup, entry, state, closing and the change that [`Log::tail`] shows are written
///    together or not at all, separately for each event. A call that fails may have appended some
///    of its events; if the call is repeated, those are duplicates.
/// 4. **State** is the entry with the highest seq, and the later one of two with the same seq. It
///    survives the trimming of its entry, and never goes back to a lower seq.
/// 5. **Closed** is a job whose closing event was appended: further events are
///    [`Appended::Closed`]. Duplicates and conflicts are recognised first.
/// 6. **One lifetime.** Entries, state and dedup are forgotten together, `retention` after the last
///    appended event. A later event begins a new log with another epoch.
/// 7. **Trimming** keeps the newest `max_entries` of a job and never affects another job. Dedup and
///    state stay.
/// 8. **Epochs** distinguish the histories of a log, like terms in Raft: two entries with equal
///    epoch and offset are the same entry, and so are all entries before them. A store that may
///    have lost acknowledged entries (in a failover) continues under a new epoch, which is marked as
///    [lossy](Epochs::turn). Entries have the epoch that the head gives their offset
///    ([`Epochs::at`]).
/// 9. **The tail** of a partition shows each appended entry once, the entries of a job in offset
///    order, and skips none that is still kept, however late its append committed. `lost` reports
///    that some entries were forgotten before they were read.
/// 10. **Pages** end before the entry that would exceed [`PageRequest::max_bytes`], but an entry
///     that is larger than that is a page of its own, so that a reader always gets on.
///
/// ```
/// use hapax_core::{log::*, memory::MemoryStore, Fingerprint, Key, Tenant};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let job = Key::job(&Tenant::default(), "scan", "job-1")?;
/// let event = |seq, payload: &'static str| LogEvent {
///     job: job.clone(),
///     stage: "vision".into(),
///     seq,
///     fingerprint: Fingerprint::of(&[payload.as_bytes()]),
///     payload: payload.into(),
///     closes: false,
/// };
/// let keep = LogRetention::default();
///
/// let first = store.append(&[event(10, "{}"), event(11, "[]")], &keep).await?;
/// let Appended::Published(at) = first[1] else { panic!() };
/// assert_eq!(at.offset, 2);
/// // A retry finds what it did before.
/// assert_eq!(store.append(&[event(11, "[]")], &keep).await?, [Appended::Duplicate(at)]);
/// assert_eq!(store.append(&[event(11, "0")], &keep).await?, [Appended::Conflict]);
///
/// let attached = store.attach(&job, &PageRequest::new(1, 100).with_state()).await?.unwrap();
/// assert_eq!(attached.entries.len(), 1);
/// assert_eq!(attached.head.state.unwrap().seq, 11);
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Log: Send + Sync {
    /// Appends up to [`MAX_APPEND`] events in the given order. Returns one answer per event.
    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>>;

    /// Reads the job's head and one page of its entries, in one atomic read; `None` if the job has
    /// no log. Trimmed entries are missing: compare [`JobHead::first`].
    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>>;

    /// Finds, among the kept entries of the job, the one with the highest seq up to `seq`; of several
    /// with that seq, the first. `None` if the job has no log.
    ///
    /// This implementation reads all entries. Stores override it to leave the payloads where they
    /// are.
    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        let mut found: Option<FoundSeq> = None;
        let mut after = 0;
        loop {
            let page = PageRequest::new(after, 1000).bytes(4 << 20);
            let Some(Attached { head, entries }) = self.attach(job, &page).await? else {
                return Ok(None);
            };
            for entry in entries.iter().filter(|entry| entry.seq <= seq) {
                if found.is_none_or(|found| entry.seq > found.seq) {
                    found = Some(FoundSeq { seq: entry.seq, at: entry.at });
                }
            }
            match entries.last() {
                Some(last) if last.at.offset < head.last => after = last.at.offset,
                _ => return Ok(Some(SeqSearch { first: head.first, found })),
            }
        }
    }

    /// Reads the changes of each partition after its position, at most `at_most` per partition.
    /// Returns one answer per element of `from`, in the same order.
    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>>;

    /// The number of partitions. It is stored with the data; opening a store that holds another
    /// number fails.
    fn partitions(&self) -> u16;

    /// Registers for a hint that an event was appended to the job. As with
    /// [`Claims::watch`](crate::Claims::watch), a hint may be spurious or missing.
    fn listen(&self, _job: &Key) -> Watch {
        Watch::never()
    }
}

/// The maximum number of events in one [`Log::append`].
pub const MAX_APPEND: usize = 1000;

/// An event to append. The caller checks the bounds: `stage` is 1 to 255 bytes of printable ASCII,
/// `seq` is at most [`MAX_NUMBER`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEvent {
    /// The job whose log the event belongs to.
    pub job: Key,
    /// The producer's stage; part of the identity.
    pub stage: Arc<str>,
    /// The producer's own number; part of the identity.
    pub seq: u64,
    /// A hash of the content.
    pub fingerprint: Fingerprint,
    /// The bytes that readers get, unchanged.
    pub payload: Bytes,
    /// Whether this event closes the job.
    pub closes: bool,
}

/// How long and how much of a job is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRetention {
    /// How long after its last event a job is kept. Log, state and dedup are forgotten together.
    pub retention: Duration,
    /// How many of a job's newest entries are kept; at least 1.
    pub max_entries: u64,
}

impl Default for LogRetention {
    /// Two hours, ten thousand entries.
    fn default() -> Self {
        Self { retention: Duration::from_secs(7200), max_entries: 10_000 }
    }
}

/// The number of one history of a log; a later epoch is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A position in a job's log: after the entry with this offset (0 for the beginning).
///
/// ```
/// use hapax_core::log::{Cursor, Epoch};
/// let cursor: Cursor = "7-42".parse().unwrap();
/// assert_eq!(cursor, Cursor { epoch: Epoch(7), offset: 42 });
/// assert_eq!(cursor.to_string(), "7-42");
/// assert!("7-+42".parse::<Cursor>().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// The epoch of the entry.
    pub epoch: Epoch,
    /// The offset of the last entry seen.
    pub offset: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch.0, self.offset)
    }
}

/// The error for a text that is not a [`Cursor`] or [`Epochs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cursor is `<epoch>-<offset>`, two whole numbers below 2^53")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let (epoch, offset) = text.split_once('-').ok_or(InvalidCursor)?;
        Ok(Self { epoch: Epoch(number(epoch)?), offset: number(offset)? })
    }
}

fn number(text: &str) -> Result<u64, InvalidCursor> {
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    let number = text.parse().ok().filter(|n| digits && *n <= MAX_NUMBER);
    number.ok_or(InvalidCursor)
}

/// The entries that [`Log::attach`] is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRequest {
    /// The offset before the first entry; entries up to it are left out.
    pub after: u64,
    /// The most entries.
    pub max_entries: usize,
    /// The most bytes of payload; a page has one entry even if that is larger.
    pub max_bytes: usize,
    /// Whether to read the job's state, whose payload costs as much as an entry.
    pub with_state: bool,
}

impl PageRequest {
    /// Up to `max_entries` entries after this offset, of any size, without the state.
    pub fn new(after: u64, max_entries: usize) -> Self {
        Self { after, max_entries, max_bytes: usize::MAX, with_state: false }
    }

    /// The head and the state, without entries.
    pub fn state_only() -> Self {
        Self::new(MAX_NUMBER, 0).with_state()
    }

    /// Limits the bytes of payload.
    #[must_use]
    pub fn bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Reads the job's state too.
    #[must_use]
    pub fn with_state(mut self) -> Self {
        self.with_state = true;
        self
    }
}

/// The answer of [`Log::find_seq`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqSearch {
    /// The first offset that is still kept; entries before it were not searched.
    pub first: u64,
    /// The entry, if there is one.
    pub found: Option<FoundSeq>,
}

/// An entry that [`Log::find_seq`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundSeq {
    /// The seq of the entry.
    pub seq: u64,
    /// The cursor of the entry.
    pub at: Cursor,
}

/// The answer to one appended event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a conflict or a closed job appended nothing"]
pub enum Appended {
    /// The event was appended at this cursor.
    Published(Cursor),
    /// The event had been appended before, at this cursor.
    Duplicate(Cursor),
    /// An event with the same identity and other content had been appended before.
    Conflict,
    /// The job is closed.
    Closed,
}

/// The result of [`Log::attach`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The current state of the job.
    pub head: JobHead,
    /// The requested entries, in offset order.
    pub entries: Vec<LogEntry>,
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// The cursor of the entry.
    pub at: Cursor,
    /// The producer's stage.
    pub stage: Arc<str>,
    /// The producer's number.
    pub seq: u64,
    /// Whether the entry closed the job.
    pub closes: bool,
    /// The bytes as they were appended.
    pub payload: Bytes,
}

/// A position in a partition's tail. Opaque: only the store that returned it can interpret it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TailPosition(Arc<str>);

impl TailPosition {
    /// The position before the oldest change that is still kept.
    pub fn start() -> Self {
        Self("".into())
    }

    /// The position after the newest change at the time of the call. [`Log::tail`] answers it with
    /// no changes, and with the actual position in [`PartitionTail::next`].
    pub fn end() -> Self {
        Self("$".into())
    }

    /// A position from the text that a store returned.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The position as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The changes of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTail {
    /// The appended entries, oldest first.
    pub changes: Vec<TailChange>,
    /// The position for the next call.
    pub next: TailPosition,
    /// Whether entries after the requested position were forgotten before this call.
    pub lost: bool,
}

/// One appended entry, to be fetched with [`Log::attach`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailChange {
    /// The job that the entry belongs to.
    pub job: Key,
    /// The offset of the entry.
    pub offset: u64,
    /// The position after this entry, from which a reader that has seen it continues.
    pub position: TailPosition,
}
