//! Activity: what this process did for its tenants, reported to the store for operators.
//!
//! ```text
//!   lock, command, inbox, bus, worker, edges
//!        │ record: counted in memory, never a store call
//!        ▼
//!   ActivityRecorder ──► reporter ──► every 2 s:  keys::LIVE     ──► ActivityReader ──► the console
//!                                     every minute: keys::MINUTES
//!                                     every 30 s: keys::NODES (a heartbeat)
//! ```

mod entry;
mod histogram;
pub mod keys;
mod node;
mod reader;
mod recorder;
mod reporter;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

use sha2::{Digest, Sha256};

pub use entry::{
    ActivityCounts, ActivityEntry, CallerConflicts, DepthCounts, EdgeActivity, KeyCounts,
    MAX_CONFLICTS, MAX_KEYS, MAX_MINUTE_CONFLICTS, MAX_QUEUES, MAX_RECENT_JOBS, MAX_SAMPLES,
    QueueOutcomes, RecentJob, StreamCounts, SuppressedDuplicate, SuppressionKind,
};
pub use histogram::LatencyHistogram;
pub use node::{MessageQuota, NodeReport, NodeTarget};
pub use reader::{
    ActivityMinute, ActivityReader, LiveCursor, LivePage, MAX_ENTRIES_READ, by_minute, open_streams,
};
pub use recorder::{
    Activity, ActivityRecorder, ClaimActivity, RequestActivity, SendActivity, StreamActivity,
};
pub use reporter::{
    ActivityReport, ActivityReporter, AlreadyReporting, NodeStatus, is_node_name, random_node_name,
};

use crate::Key;
use crate::hex::hex;

static RECORDER: OnceLock<Arc<ActivityRecorder>> = OnceLock::new();

/// Makes this the recorder of the process; returns it where there is one already. [`ActivityReport::start`] does so by itself.
pub fn install(recorder: Arc<ActivityRecorder>) -> Result<(), Arc<ActivityRecorder>> {
    RECORDER.set(recorder)
}

/// Counts something that happened, if the process has a recorder.
#[inline]
pub fn record(activity: Activity<'_>) {
    if let Some(recorder) = RECORDER.get() {
        recorder.record(activity);
    }
}

/// Whether the process has a recorder, for callers that would have to collect what they record.
#[inline]
pub fn is_recorded() -> bool {
    RECORDER.get().is_some()
}

/// The hash of a key in entries: the first 16 hexadecimal digits of the SHA-256 of [`Key::canonical`]. Keys
/// may identify a person.
///
/// ```
/// use hapax_core::{activity::key_hash, Key, Tenant};
/// let key = Key::lock(&Tenant::default(), "user:U1").unwrap();
/// assert_eq!(key_hash(&key).len(), 16);
/// ```
pub fn key_hash(key: &Key) -> String {
    hex(&Sha256::digest(key.canonical())[..8])
}
