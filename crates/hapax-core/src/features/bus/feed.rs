//! One job that somebody follows: a ring, and one reader that keeps it current.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::ring::{MOST_ENTRIES, Ring};
use crate::log::{Attached, Cursor, JobHead};
use crate::{Key, Store, StoreError, metric_names, with_timeout};

/// Stores keep their own limit; this one is for those that do not.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How many entries are asked for at once.
pub(super) const PAGE: usize = 64;
/// A job is looked at by itself this often: nothing is appended when a failover loses entries.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long a reader pauses after a store call that failed, at first and at most.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct Feed {
    pub(super) job: Key,
    ring: Mutex<Ring>,
    /// Tells followers that the ring has changed.
    pub(super) news: watch::Sender<()>,
    /// Tells the reader that the log may have.
    poke: Notify,
}

impl Feed {
    pub(super) fn new(job: Key) -> Self {
        Self { job, ring: Mutex::default(), news: watch::Sender::new(()), poke: Notify::new() }
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log may have changed.
    pub(super) fn poke(&self) {
        self.poke.notify_one();
    }

    /// Reads the log for as long as somebody follows it. Registered before the first look: nothing
    /// that is appended after it goes unnoticed.
    pub(super) async fn keep_current(&self, store: &dyn Store) {
        let mut hints = store.listen(&self.job);
        let mut pause = PAUSE;
        loop {
            match self.catch_up(store).await {
                Ok(()) => pause = PAUSE,
                Err(error) => {
                    self.failed(&error);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
            }
            tokio::select! {
                () = hints.changed(LOOK_AGAIN) => {}
                () = self.poke.notified() => {}
            }
        }
    }

    fn failed(&self, error: &StoreError) {
        read_failed("job", error);
        if !std::mem::replace(&mut self.ring().tried, true) {
            self.news.send_replace(());
        }
    }

    async fn catch_up(&self, store: &dyn Store) -> Result<(), StoreError> {
        loop {
            let began = Instant::now();
            let from = self.ring().end();
            let after = from.map_or(0, |cursor| cursor.offset);
            let attached = attach(store, &self.job, after, PAGE).await?;
            let (news, done) = self.take(from, attached, began);
            if news {
                self.news.send_replace(());
            }
            if done {
                return Ok(());
            }
        }
    }

    /// Takes one page; whether there was anything new, and whether it was the last page.
    fn take(&self, from: Option<Cursor>, page: Option<Attached>, began: Instant) -> (bool, bool) {
        let mut ring = self.ring();
        let Some(Attached { head, entries }) = page else {
            let news = ring.forget();
            return (ring.is_current(began) || news, true);
        };
        let next = from.map_or(1, |from| from.offset + 1);
        let follows = entries.first().is_none_or(|entry| entry.at.offset == next);
        if from.is_none_or(|from| !head.holds(from)) || !follows {
            // A ring begins at its log's newest entries: who is behind them reads the store.
            let base = before(&head, head.first.max(head.last.saturating_sub(MOST_ENTRIES as u64)));
            ring.restart(base);
            if base.offset + 1 != next {
                return (false, false);
            }
        }
        let news = ring.extend(&head, &entries);
        let done = entries.is_empty() || ring.end().is_some_and(|end| end.offset == head.last);
        (done && ring.is_current(began) || news, done)
    }
}

/// The cursor of a reader that gets the entry with this offset next.
pub(super) fn before(head: &JobHead, offset: u64) -> Cursor {
    let offset = offset.max(1);
    let epoch = head.epochs.at(offset - 1).or(head.epochs.at(offset));
    Cursor { epoch: epoch.unwrap_or(head.epochs.last()), offset: offset - 1 }
}

pub(super) async fn attach(
    store: &dyn Store,
    job: &Key,
    after: u64,
    at_most: usize,
) -> Result<Option<Attached>, StoreError> {
    with_timeout(CALL_LIMIT, store.attach(job, after, at_most)).await
}

pub(super) fn read_failed(what: &'static str, error: &StoreError) {
    metric_names::count_store_error(error);
    counter!(metric_names::BUS_READ_FAILURES, "what" => what).increment(1);
    tracing::debug!(reason = error.label(), what, "a followed job was not read: {error}");
}
