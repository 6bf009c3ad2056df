//! What this process knows about events by itself: the store may be away, or its answers late.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hapax_core::queue::ItemId;
use tokio::time::Instant;

use super::Arrived;

/// So many are remembered of each sort. Beyond that an event may be handled again by whoever finds it
/// in the store: what is unprotected is not promised more.
const MOST: usize = 10_000;
/// Longer than an event is tried again and again.
const REPLIED: Duration = Duration::from_secs(600);

/// How far this process has got with an event that it handles without the store's knowledge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    InHand,
    Done,
}

/// What came and went a moment ago, and what the store does not know.
#[derive(Clone)]
pub(crate) struct Local {
    /// What is called a moment.
    moment: Duration,
    books: Arc<Mutex<Books>>,
}

#[derive(Default)]
struct Books {
    /// Stored by this process, and not taken out by it.
    stored: HashMap<ItemId, (Arrived, Instant)>,
    /// Taken out by this process, and being handled.
    hands: HashSet<ItemId>,
    /// … and no longer.
    ended: HashMap<ItemId, Instant>,
    /// Handled without the store.
    unprotected: HashMap<ItemId, Progress>,
    /// Replied to, successfully or not.
    replied: HashMap<ItemId, Instant>,
}

/// An event that was taken out of the store is in this process's hands until this is dropped: a
/// webhook whose store call was too slow must not handle it beside or after.
pub(super) struct Hand {
    local: Local,
    id: ItemId,
}

impl Drop for Hand {
    fn drop(&mut self) {
        let mut books = self.local.books();
        books.hands.remove(&self.id);
        if books.ended.len() < MOST {
            books.ended.insert(self.id, Instant::now() + self.local.moment);
        }
    }
}

impl Local {
    pub(super) fn new(moment: Duration) -> Self {
        Self { moment, books: Arc::default() }
    }

    /// Keeps an event at hand that was stored, in case the store goes away before it is taken out.
    pub(super) fn stored(&self, event: Arrived) {
        let mut books = self.books();
        if books.stored.len() < MOST && !books.was_taken(event.id) {
            books.stored.insert(event.id, (event, Instant::now() + self.moment));
        }
    }

    /// It was taken out of the store.
    pub(super) fn taken(&self, id: ItemId) {
        self.books().stored.remove(&id);
    }

    /// Every event that was stored a moment ago and not taken out since.
    pub(super) fn stranded(&self) -> Vec<Arrived> {
        let now = Instant::now();
        let stored = std::mem::take(&mut self.books().stored);
        stored.into_values().filter(|(_, until)| *until > now).map(|(event, _)| event).collect()
    }

    /// Forgets what is no longer a moment ago.
    pub(super) fn sweep(&self) {
        let mut books = self.books();
        let now = Instant::now();
        books.stored.retain(|_, (_, until)| *until > now);
        books.ended.retain(|_, until| *until > now);
        books.replied.retain(|_, until| *until > now);
    }

    /// Begins to handle an event that was taken out of the store; how far this process has got with
    /// it, where it knows it already.
    pub(super) fn take(&self, id: ItemId) -> Result<Hand, Progress> {
        let mut books = self.books();
        if let Some(progress) = books.unprotected.get(&id) {
            return Err(*progress);
        }
        // Its lease ran out, and this process got the next one too.
        if !books.hands.insert(id) {
            return Err(Progress::InHand);
        }
        Ok(Hand { local: self.clone(), id })
    }

    /// Begins to handle an event without the store; not where it is known already.
    pub(super) fn begin(&self, id: ItemId) -> bool {
        let mut books = self.books();
        if books.unprotected.contains_key(&id) || books.was_taken(id) {
            return false;
        }
        books.go_on(id);
        true
    }

    /// The store went away after this event was taken out: it is handled all the same.
    pub(super) fn go_on(&self, id: ItemId) {
        self.books().go_on(id);
    }

    /// It was handled, and the store does not know yet.
    pub(super) fn done(&self, id: ItemId) {
        let mut books = self.books();
        books.replied.remove(&id);
        if books.unprotected.len() < MOST || books.unprotected.contains_key(&id) {
            books.unprotected.insert(id, Progress::Done);
        }
    }

    /// It was handled, and the store knows.
    pub(super) fn told(&self, id: ItemId) {
        let mut books = self.books();
        books.replied.remove(&id);
        books.unprotected.remove(&id);
    }

    /// It is not in hand any more, and may be tried again.
    pub(super) fn give_up(&self, id: ItemId) {
        self.books().unprotected.remove(&id);
    }

    /// Events that were handled and of which the store does not know.
    pub(super) fn all_done(&self) -> Vec<ItemId> {
        let books = self.books();
        let done = books.unprotected.iter().filter(|(_, progress)| **progress == Progress::Done);
        done.map(|(id, _)| *id).collect()
    }

    /// Says that a reply is tried; `false` where one was before.
    pub(crate) fn reply(&self, id: ItemId) -> bool {
        let mut books = self.books();
        if books.replied.contains_key(&id) {
            return false;
        }
        if books.replied.len() < MOST {
            books.replied.insert(id, Instant::now() + REPLIED);
        }
        true
    }

    /// Nothing was sent after all.
    pub(crate) fn unreply(&self, id: ItemId) {
        self.books().replied.remove(&id);
    }

    pub(crate) fn was_replied_to(&self, id: ItemId) -> bool {
        self.books().replied.contains_key(&id)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Whether it came out of the queue a moment ago: then it is there, whatever its webhook heard.
    fn was_taken(&self, id: ItemId) -> bool {
        self.hands.contains(&id) || self.ended.contains_key(&id)
    }

    fn go_on(&mut self, id: ItemId) {
        if self.unprotected.len() < MOST {
            self.unprotected.insert(id, Progress::InHand);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A webhook gives up on a slow store, which has the event all the same and hands it out.
    #[tokio::test(start_paused = true)]
    async fn an_event_is_in_one_hand_of_this_process_at_a_time() {
        let moment = Duration::from_secs(2);
        let (local, id) = (Local::new(moment), ItemId::fresh());
        let hand = local.take(id);
        assert!(hand.is_ok() && !local.begin(id));
        assert_eq!(local.take(id).err(), Some(Progress::InHand));
        drop(hand);
        // The webhook may still be about to give up.
        assert!(!local.begin(id));
        tokio::time::advance(moment).await;
        local.sweep();
        assert!(local.begin(id) && !local.begin(id));
        assert_eq!(local.take(id).err(), Some(Progress::InHand));
        local.done(id);
        assert_eq!(local.take(id).err(), Some(Progress::Done));
        assert_eq!(local.all_done(), [id]);
        local.told(id);
        assert!(local.take(id).is_ok());
    }
}
