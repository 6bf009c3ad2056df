//! Dead letters, as operators see them and act on them.

use std::collections::HashMap;
use std::sync::Arc;

use super::ItemId;
use crate::Timestamp;

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The id of the item.
    pub id: ItemId,
    /// The topic of the item.
    pub topic: Arc<str>,
    /// The ordering key of the item.
    pub key: Option<Arc<str>>,
    /// How many attempts were made.
    pub attempts: u32,
    /// Why the item was buried: the newest of `errors`, or empty.
    pub reason: Arc<str>,
    /// The reasons of its failures since it was enqueued or requeued, the oldest first; at most the last
    /// [`MAX_REASONS`](super::reasons::MAX_REASONS).
    pub errors: Vec<Arc<str>>,
    /// When the item was buried.
    pub at: Timestamp,
}

/// The filter and the page of [`Queue::dead`](super::Queue::dead).
///
/// ```
/// use hapax_core::queue::DeadQuery;
/// let query = DeadQuery::new(50).reason(Some("HTTP 422".into()));
/// assert_eq!((query.after, query.at_most), (None, 50));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadQuery {
    /// Lists only those with a greater id: the last one of the page before.
    pub after: Option<ItemId>,
    /// Lists only those with this [`DeadLetter::reason`].
    pub reason: Option<Arc<str>>,
    /// The maximum number of dead letters.
    pub at_most: u32,
}

impl DeadQuery {
    /// The first page of all dead letters.
    pub fn new(at_most: u32) -> Self {
        Self { after: None, reason: None, at_most }
    }

    crate::builder_methods! {
        /// Sets the id after which the page begins.
        after: Option<ItemId>;
        /// Sets the reason that all of them have.
        reason: Option<Arc<str>>;
    }
}

/// The dead letters of a queue with the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadReason {
    /// Their [`DeadLetter::reason`].
    pub reason: Arc<str>,
    /// How many they are.
    pub count: u64,
    /// When the first of them was buried.
    pub first_at: Timestamp,
    /// When the last of them was buried.
    pub last_at: Timestamp,
}

/// Counts reasons for [`Queue::dead_reasons`](super::Queue::dead_reasons).
///
/// ```
/// use hapax_core::{Timestamp, queue::ReasonCounts};
/// let mut counts = ReasonCounts::default();
/// for (reason, at) in [("timeout", 5), ("refused", 3), ("timeout", 1)] {
///     counts.add(reason, 1, [Timestamp(at); 2]);
/// }
/// let most = counts.most_frequent(1);
/// assert_eq!((&*most[0].reason, most[0].count), ("timeout", 2));
/// assert_eq!((most[0].first_at, most[0].last_at), (Timestamp(1), Timestamp(5)));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ReasonCounts(HashMap<Arc<str>, DeadReason>);

impl ReasonCounts {
    /// Counts this many dead letters with a reason, the first and the last of which were buried at these times.
    pub fn add(&mut self, reason: &str, count: u64, [first_at, last_at]: [Timestamp; 2]) {
        if let Some(found) = self.0.get_mut(reason) {
            found.count += count;
            found.first_at = found.first_at.min(first_at);
            found.last_at = found.last_at.max(last_at);
            return;
        }
        let reason: Arc<str> = reason.into();
        self.0.insert(reason.clone(), DeadReason { reason, count, first_at, last_at });
    }

    /// The most frequent reasons first; equally frequent ones by their text.
    pub fn most_frequent(self, at_most: u32) -> Vec<DeadReason> {
        let mut reasons: Vec<_> = self.0.into_values().collect();
        reasons.sort_by(|a, b| (b.count, &a.reason).cmp(&(a.count, &b.reason)));
        reasons.truncate(at_most as usize);
        reasons
    }
}

/// The action of [`Queue::resolve_dead`](super::Queue::resolve_dead) on a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterAction {
    /// The item waits again, at its old position in the order, with its attempts counted from zero and
    /// without the reasons of its failures.
    Requeue,
    /// The item is deleted and no longer holds back its key.
    Discard,
}
