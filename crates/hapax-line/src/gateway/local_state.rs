//! The state of events that this process keeps in memory, because the store may be down or slow.

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hapax_core::deadline_after;
use hapax_core::queue::ItemId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio::time::{Instant, timeout};

use super::ReceivedEvent;

/// The most entries of each map. Beyond it an event may be handled again when it is leased: unprotected
/// events are not promised more.
const MAX_ENTRIES: usize = 10_000;
/// Longer than all retries of an event take.
const REPLY_RETENTION: Duration = Duration::from_secs(600);

/// How far this process has got with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalProgress {
    InHand,
    Handled,
}

/// The events that this process handles or has just handled, and those that the store does not know.
#[derive(Clone)]
pub(crate) struct LocalState {
    retention: Duration,
    events: Arc<Mutex<LocalEvents>>,
}

#[derive(Default)]
struct LocalEvents {
    /// Stored by this process and not leased by it yet, with the order in which they were.
    stored: HashMap<ItemId, UnleasedEvent>,
    last_stored: u64,
    /// The sources whose unlocked events this process is handling.
    sources: HashMap<String, Arc<AsyncMutex<()>>>,
    /// Leased by this process and being handled.
    in_hand: HashSet<ItemId>,
    /// Leased by this process, and handled a moment ago.
    ended: HashMap<ItemId, Instant>,
    /// Handled, or being handled, without the store's knowledge.
    unprotected: HashMap<ItemId, LocalProgress>,
    /// A reply was tried, successfully or not.
    replied: HashMap<ItemId, Instant>,
}

struct UnleasedEvent {
    event: ReceivedEvent,
    number: u64,
    until: Instant,
}

/// A place in the line of those that wait for a source, held until it is dropped.
pub(super) struct SourceTurn {
    waiting: Pin<Box<dyn Future<Output = OwnedMutexGuard<()>> + Send>>,
    entered: Option<OwnedMutexGuard<()>>,
}

impl SourceTurn {
    /// Waits until all that came earlier have left.
    pub(super) async fn wait(&mut self) {
        if self.entered.is_none() {
            self.entered = Some(self.waiting.as_mut().await);
        }
    }
}

/// Marks a leased event as in hand until it is dropped, so that a webhook whose store call was too slow
/// does not handle the same event from memory.
pub(super) struct InHandGuard {
    local: LocalState,
    id: ItemId,
}

impl Drop for InHandGuard {
    fn drop(&mut self) {
        let mut events = self.local.events();
        events.in_hand.remove(&self.id);
        if events.ended.len() < MAX_ENTRIES {
            events.ended.insert(self.id, deadline_after(Instant::now(), self.local.retention));
        }
    }
}

impl LocalState {
    /// Keeps stored and ended events for so long.
    pub(super) fn new(retention: Duration) -> Self {
        Self { retention, events: Arc::default() }
    }

    /// Keeps a stored event, in case the store goes down before it is leased.
    pub(super) fn note_stored(&self, event: ReceivedEvent) {
        let mut events = self.events();
        if events.stored.len() < MAX_ENTRIES && !events.was_leased(event.id) {
            events.last_stored += 1;
            let until = deadline_after(Instant::now(), self.retention);
            let number = events.last_stored;
            events.stored.insert(event.id, UnleasedEvent { event, number, until });
        }
    }

    /// Forgets a stored event, because it is leased now.
    pub(super) fn forget_stored(&self, id: ItemId) {
        self.events().stored.remove(&id);
    }

    /// Takes every event that was stored a moment ago and not leased since, in order.
    pub(super) fn take_unleased(&self) -> Vec<ReceivedEvent> {
        let now = Instant::now();
        let stored = std::mem::take(&mut self.events().stored);
        let mut stored: Vec<_> = stored.into_values().filter(|event| event.until > now).collect();
        stored.sort_by_key(|event| event.number);
        stored.into_iter().map(|stored| stored.event).collect()
    }

    /// Takes a place in the line for a source, behind all that did before. Within this process it keeps
    /// unlocked events of a source in order, one at a time, also while the store is down.
    pub(super) fn enter_source(&self, source: &str) -> SourceTurn {
        let lock = self.events().sources.entry(source.to_owned()).or_default().clone();
        let mut waiting = Box::pin(lock.lock_owned());
        // Polled once, because the lock is given in the order of the first polls.
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let entered = match polled {
            Poll::Ready(entered) => Some(entered),
            Poll::Pending => None,
        };
        SourceTurn { waiting, entered }
    }

    pub(super) fn remove_expired(&self) {
        let mut events = self.events();
        let now = Instant::now();
        events.stored.retain(|_, stored| stored.until > now);
        // A lock that only the map knows is neither held nor waited for.
        events.sources.retain(|_, lock| Arc::strong_count(lock) > 1);
        events.ended.retain(|_, until| *until > now);
        events.replied.retain(|_, until| *until > now);
    }

    /// Begins to handle a leased event; fails where this process has begun it already.
    pub(super) fn begin_leased(&self, id: ItemId) -> Result<InHandGuard, LocalProgress> {
        let mut events = self.events();
        if let Some(progress) = events.unprotected.get(&id) {
            return Err(*progress);
        }
        // In hand already where its lease ran out and this process got the next one too.
        if !events.in_hand.insert(id) {
            return Err(LocalProgress::InHand);
        }
        Ok(InHandGuard { local: self.clone(), id })
    }

    /// Begins to handle an event without the store; false where this process has begun it already.
    pub(super) fn begin_unprotected(&self, id: ItemId) -> bool {
        let mut events = self.events();
        if events.unprotected.contains_key(&id) || events.was_leased(id) {
            return false;
        }
        events.insert_unprotected(id);
        true
    }

    /// Goes on with a leased event after the store went down.
    pub(super) fn continue_unprotected(&self, id: ItemId) {
        self.events().insert_unprotected(id);
    }

    /// Records that an event was handled and the store does not know it yet.
    pub(super) fn set_handled(&self, id: ItemId) {
        let mut events = self.events();
        events.replied.remove(&id);
        if events.unprotected.len() < MAX_ENTRIES || events.unprotected.contains_key(&id) {
            events.unprotected.insert(id, LocalProgress::Handled);
        }
    }

    /// Forgets a handled event, because the store knows it.
    pub(super) fn forget_handled(&self, id: ItemId) {
        let mut events = self.events();
        events.replied.remove(&id);
        events.unprotected.remove(&id);
    }

    /// Records that an event is no longer handled without the store, and may be tried again.
    pub(super) fn end_unprotected(&self, id: ItemId) {
        self.events().unprotected.remove(&id);
    }

    /// Handled events that the store does not know.
    pub(super) fn unreported(&self) -> Vec<ItemId> {
        let events = self.events();
        let is_handled = |progress: &LocalProgress| *progress == LocalProgress::Handled;
        let handled = events.unprotected.iter().filter(|(_, progress)| is_handled(progress));
        handled.map(|(id, _)| *id).collect()
    }

    /// Records that a reply is tried; false where one was tried before.
    pub(crate) fn begin_reply(&self, id: ItemId) -> bool {
        let mut events = self.events();
        if events.replied.contains_key(&id) {
            return false;
        }
        if events.replied.len() < MAX_ENTRIES {
            events.replied.insert(id, Instant::now() + REPLY_RETENTION);
        }
        true
    }

    /// Undoes [`LocalState::begin_reply`], because nothing was sent.
    pub(crate) fn undo_reply(&self, id: ItemId) {
        self.events().replied.remove(&id);
    }

    pub(crate) fn has_replied(&self, id: ItemId) -> bool {
        self.events().replied.contains_key(&id)
    }

    fn events(&self) -> MutexGuard<'_, LocalEvents> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalEvents {
    /// Whether the event was leased a moment ago: then it is stored, whatever its webhook was told.
    fn was_leased(&self, id: ItemId) -> bool {
        self.in_hand.contains(&id) || self.ended.contains_key(&id)
    }

    fn insert_unprotected(&mut self, id: ItemId) {
        if self.unprotected.len() < MAX_ENTRIES {
            self.unprotected.insert(id, LocalProgress::InHand);
        }
    }
}

/// One timeout that all store calls of an event share: a bot must answer even if every call is slow.
pub(crate) struct SharedTimeout(Mutex<Duration>);

impl SharedTimeout {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self(Mutex::new(timeout))
    }

    /// Runs a call within the time that is left; `None` where that was not enough.
    pub(crate) async fn run<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let left = *self.left();
        if left.is_zero() {
            return None;
        }
        let begun = Instant::now();
        let answer = timeout(left, call).await.ok();
        let mut left = self.left();
        *left = left.saturating_sub(begun.elapsed());
        answer
    }

    /// The time that is left.
    pub(super) fn time_left(&self) -> Duration {
        *self.left()
    }

    fn left(&self) -> MutexGuard<'_, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An event can reach a process twice: leased from the queue, and unprotected from a webhook whose
    /// store call timed out although the event was stored. Only one of the two handles it.
    #[tokio::test(start_paused = true)]
    async fn local_state_event_is_in_hand_once_per_process() {
        let retention = Duration::from_secs(2);
        let (local, id) = (LocalState::new(retention), ItemId::fresh());
        let in_hand = local.begin_leased(id);
        assert!(in_hand.is_ok() && !local.begin_unprotected(id));
        assert_eq!(local.begin_leased(id).err(), Some(LocalProgress::InHand));
        drop(in_hand);
        // The webhook may still be about to give up.
        assert!(!local.begin_unprotected(id));
        tokio::time::advance(retention).await;
        local.remove_expired();
        assert!(local.begin_unprotected(id) && !local.begin_unprotected(id));
        assert_eq!(local.begin_leased(id).err(), Some(LocalProgress::InHand));
        local.set_handled(id);
        assert_eq!(local.begin_leased(id).err(), Some(LocalProgress::Handled));
        assert_eq!(local.unreported(), [id]);
        local.forget_handled(id);
        assert!(local.begin_leased(id).is_ok());
    }
}
