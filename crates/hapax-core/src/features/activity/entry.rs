//! The entries of the logs of activity, as JSON.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::{Deserialize, Serialize};

use super::LatencyHistogram;

/// How many samples of suppressed duplicates an entry has.
pub const MAX_SAMPLES: usize = 20;
/// How many callers with conflicts an entry of some seconds has; an entry of a minute has [`MAX_MINUTE_CONFLICTS`].
pub const MAX_CONFLICTS: usize = 20;
/// How many callers with conflicts an entry of a minute has.
pub const MAX_MINUTE_CONFLICTS: usize = 50;
/// How many keys an entry has.
pub const MAX_KEYS: usize = 100;
/// How many jobs an entry has.
pub const MAX_RECENT_JOBS: usize = 20;
/// How many queues an entry has.
pub const MAX_QUEUES: usize = 50;

/// The activity of one node for one tenant, over some seconds or a minute.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityEntry {
    /// When it began, in milliseconds since the Unix epoch.
    pub at: u64,
    /// How long it lasted, in milliseconds.
    pub ms: u64,
    /// The name of the node.
    pub node: String,
    /// The kind of the node: `api`, `proxy`, `relay`, `line`, `layer`, or any other.
    pub edge: String,
    /// Requests and their results.
    pub counts: ActivityCounts,
    /// The latencies of requests.
    pub latency: LatencyHistogram,
    /// Samples of duplicates that did no harm.
    pub suppressed: Vec<SuppressedDuplicate>,
    /// Conflicts, by caller and operation.
    pub conflicts: Vec<CallerConflicts>,
    /// What happened to single keys, by their hash ([`key_hash`](super::key_hash)).
    pub keys: BTreeMap<String, KeyCounts>,
    /// Jobs that had events. Not part of the JSON: their ids may identify a person, and every console follows these
    /// entries. [`ActivityReader::recent_jobs`](super::ActivityReader::recent_jobs) has them.
    #[serde(skip)]
    pub jobs: Vec<RecentJob>,
    /// Outcomes of queued items, by queue.
    pub queues: BTreeMap<String, QueueOutcomes>,
    /// Event streams.
    pub streams: StreamCounts,
    /// Requests for event streams, which are not among [`ActivityEntry::counts`]. The latency of one is the time until
    /// its first events were ready to be sent.
    #[serde(skip_serializing_if = "EdgeActivity::is_empty")]
    pub sse: EdgeActivity,
    /// Events of LINE, by what became of them: `accepted`, `duplicate`, `unprotected`, `refused`, `done`, `busy`, `failed`,
    /// `dead`; and `replied`, `pushed` for messages to LINE.
    pub line: BTreeMap<String, u64>,
    /// What waits in queues at the end of a minute, by queue.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub depths: BTreeMap<String, DepthCounts>,
}

impl ActivityEntry {
    /// Adds what happened later at the same node, keeping lists within the bounds of an entry of a minute.
    pub fn merge(&mut self, later: Self) {
        self.counts.add(&later.counts);
        self.latency.merge(&later.latency);
        extend(&mut self.suppressed, later.suppressed, MAX_SAMPLES);
        for conflict in later.conflicts {
            merge_conflict(&mut self.conflicts, conflict, MAX_MINUTE_CONFLICTS);
        }
        for (key, counts) in later.keys {
            if let Some(kept) = bounded_entry(&mut self.keys, key, MAX_KEYS) {
                kept.add(&counts);
            }
        }
        for job in later.jobs {
            push_recent_job(&mut self.jobs, job);
        }
        for (queue, outcomes) in later.queues {
            if let Some(kept) = bounded_entry(&mut self.queues, queue, MAX_QUEUES) {
                kept.add(&outcomes);
            }
        }
        self.streams.merge(&later.streams);
        self.sse.merge(&later.sse);
        for (what, count) in later.line {
            *self.line.entry(what).or_default() += count;
        }
        if !later.depths.is_empty() {
            self.depths = later.depths;
        }
    }
}

/// Requests of an edge, their results and their latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EdgeActivity {
    /// Requests and their results.
    pub counts: ActivityCounts,
    /// The latencies of requests; [`LatencyHistogram::percentile`].
    pub latency: LatencyHistogram,
}

impl EdgeActivity {
    /// Adds the activity of another time or node.
    pub fn merge(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.latency.merge(&other.latency);
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn extend<T>(list: &mut Vec<T>, more: Vec<T>, max: usize) {
    let room = max.saturating_sub(list.len());
    list.extend(more.into_iter().take(room));
}

/// The value of a key, new if there is room for one more.
pub(super) fn bounded_entry<K: Ord, V: Default>(
    map: &mut BTreeMap<K, V>,
    key: K,
    max: usize,
) -> Option<&mut V> {
    let is_full = map.len() >= max;
    match map.entry(key) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(_) if is_full => None,
        Entry::Vacant(entry) => Some(entry.insert(V::default())),
    }
}

pub(super) fn merge_conflict(
    list: &mut Vec<CallerConflicts>,
    conflict: CallerConflicts,
    max: usize,
) {
    let same = list
        .iter_mut()
        .find(|kept| kept.caller == conflict.caller && kept.operation == conflict.operation);
    if let Some(kept) = same {
        kept.reused += conflict.reused;
        kept.in_progress += conflict.in_progress;
    } else if list.len() < max {
        list.push(conflict);
    }
}

/// Notes a job that had an event; the newest ones stay.
pub(super) fn push_recent_job(jobs: &mut Vec<RecentJob>, job: RecentJob) {
    jobs.retain(|kept| kept.domain != job.domain || kept.job_id != job.job_id);
    if jobs.len() >= MAX_RECENT_JOBS {
        jobs.remove(0);
    }
    jobs.push(job);
}

/// Declares counts with the sum of two.
macro_rules! counts {
    ($(#[$about:meta])+ $name:ident { $($(#[$doc:meta])+ $field:ident,)+ }) => {
        $(#[$about])+
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct $name {
            $($(#[$doc])+ pub $field: u64,)+
        }

        impl $name {
            /// Adds other counts.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }
        }
    };
}

counts! {
    /// How many requests there were, and what became of them.
    ActivityCounts {
        /// Requests of HTTP edges; of relays, items that were sent; elsewhere claims.
        requests,
        /// Claims that were granted: something ran.
        first_runs,
        /// Duplicates that got the first one's answer.
        replays,
        /// Duplicates that got the first one's answer after waiting for it.
        waits,
        /// Requests that were refused: busy locks, conflicts, overload. Includes `reused` and `in_progress`.
        refusals,
        /// Requests that failed, such as because the store did.
        errors,
        /// Keys that belong to another request.
        reused,
        /// Duplicates whose first one was still running.
        in_progress,
    }
}

counts! {
    /// What happened to one key. Counts of zero are left out of its JSON.
    KeyCounts {
        /// Granted.
        #[serde(skip_serializing_if = "is_zero")]
        claimed,
        /// Its lease was renewed.
        #[serde(skip_serializing_if = "is_zero")]
        renewed,
        /// Settled or released.
        #[serde(skip_serializing_if = "is_zero")]
        settled,
        /// A duplicate got its answer.
        #[serde(skip_serializing_if = "is_zero")]
        replayed,
        /// A duplicate waited for its answer.
        #[serde(skip_serializing_if = "is_zero")]
        waited,
        /// A duplicate was refused.
        #[serde(skip_serializing_if = "is_zero")]
        refused,
    }
}

counts! {
    /// How leases of a queue's items ended.
    QueueOutcomes {
        /// Done.
        acked,
        /// To be tried again.
        retried,
        /// Dead letters.
        buried,
    }
}

counts! {
    /// What waits in a queue.
    DepthCounts {
        /// Items that wait.
        waiting,
        /// Items that are leased.
        in_flight,
        /// Dead letters.
        dead,
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Event streams: how many are open at the end, and why others have ended meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamCounts {
    /// Open at the end of the time.
    pub open: u64,
    /// The last event was sent.
    pub complete: u64,
    /// The client left.
    pub client: u64,
    /// The client did not read.
    pub slow: u64,
    /// The signed link expired.
    pub expired: u64,
    /// The server stopped.
    pub shutdown: u64,
    /// Gaps that were sent.
    pub gaps: u64,
}

impl StreamCounts {
    /// Adds what happened later at the same node: what is open then is open now.
    pub fn merge(&mut self, later: &Self) {
        self.open = later.open;
        self.add_ended(later);
    }

    /// Adds streams that ended, and gaps, of any node.
    pub fn add_ended(&mut self, other: &Self) {
        self.complete += other.complete;
        self.client += other.client;
        self.slow += other.slow;
        self.expired += other.expired;
        self.shutdown += other.shutdown;
        self.gaps += other.gaps;
    }
}

/// One duplicate that did no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuppressedDuplicate {
    /// When, in milliseconds since the Unix epoch.
    pub at: u64,
    /// The operation, consumer or domain; `lock` for locks.
    pub operation: String,
    /// What became of it.
    pub kind: SuppressionKind,
    /// The caller, as a hash; `None` where keys are not apart by caller.
    pub caller: Option<String>,
    /// The hash of the key ([`key_hash`](super::key_hash)).
    pub key_hash: String,
    /// How long after the first one it came; `None` where that is not known.
    pub after_first_ms: Option<u64>,
}

/// What became of a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuppressionKind {
    /// It got the first one's answer.
    Replayed,
    /// It got the first one's answer after waiting for it.
    Waited,
    /// It was refused, because the first one was still running.
    Refused,
    /// It came too late: for a value that had changed, or a job that was closed.
    OutOfOrder,
}

/// How often a caller's requests for an operation met conflicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallerConflicts {
    /// The caller, as a hash; `None` where keys are not apart by caller.
    pub caller: Option<String>,
    /// The operation.
    pub operation: String,
    /// Keys that belong to another request.
    pub reused: u64,
    /// Requests whose first one was still running.
    pub in_progress: u64,
}

/// A job that had an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentJob {
    /// The domain.
    pub domain: String,
    /// The id within the domain.
    pub job_id: String,
    /// The stage of the event.
    pub stage: String,
    /// When, in milliseconds since the Unix epoch.
    pub at: u64,
}
