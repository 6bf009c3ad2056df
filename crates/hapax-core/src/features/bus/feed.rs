//! One followed job: a ring of frames, and the task that keeps it current.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::frame::EncodedFrame;
use super::ring::{MAX_ENTRIES, Ring};
use crate::log::{Attached, Cursor, JobHead};
use crate::{Key, Store, StoreError, StoreResult, metric_names, with_timeout};

/// For stores that do not bound their calls themselves.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How many entries one store call reads.
pub(super) const PAGE_ENTRIES: usize = 64;
/// How often a job is read without a hint: a failover that loses entries appends nothing.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed store call, at first and at most.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct JobFeed<F> {
    pub(super) job: Key,
    ring: Mutex<Ring<F>>,
    /// Tells followers that the ring has changed.
    pub(super) ring_changed: watch::Sender<()>,
    /// Tells the reading task that the log may have changed.
    log_changed: Notify,
}

impl<F: EncodedFrame> JobFeed<F> {
    pub(super) fn new(job: Key) -> Self {
        let (ring_changed, log_changed) = (watch::Sender::new(()), Notify::new());
        Self { job, ring: Mutex::default(), ring_changed, log_changed }
    }

    pub(super) fn ring(&self) -> MutexGuard<'_, Ring<F>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the reading task that the log may have changed.
    pub(super) fn notify_reader(&self) {
        self.log_changed.notify_one();
    }

    /// Reads the log until the task is aborted. Listens before the first read, so that no append
    /// after it goes unnoticed.
    pub(super) async fn keep_current(&self, store: &dyn Store) {
        let mut hints = store.listen(&self.job);
        let mut pause = MIN_PAUSE;
        loop {
            match self.catch_up(store).await {
                Ok(()) => pause = MIN_PAUSE,
                Err(error) => {
                    self.read_failed(&error);
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    continue;
                }
            }
            tokio::select! {
                () = hints.changed(READ_INTERVAL) => {}
                () = self.log_changed.notified() => {}
            }
        }
    }

    fn read_failed(&self, error: &StoreError) {
        count_read_failure("job", error);
        if !std::mem::replace(&mut self.ring().tried, true) {
            self.ring_changed.send_replace(());
        }
    }

    async fn catch_up(&self, store: &dyn Store) -> StoreResult<()> {
        loop {
            let began = Instant::now();
            let from = self.ring().end();
            let after = from.map_or(0, |cursor| cursor.offset);
            let attached = attach(store, &self.job, after, PAGE_ENTRIES).await?;
            let (changed, is_last_page) = self.add_page(from, attached, began);
            if changed {
                self.ring_changed.send_replace(());
            }
            if is_last_page {
                return Ok(());
            }
        }
    }

    /// Adds one page to the ring; returns whether the ring changed, and whether it was the last page.
    fn add_page(
        &self,
        from: Option<Cursor>,
        page: Option<Attached>,
        began: Instant,
    ) -> (bool, bool) {
        let mut ring = self.ring();
        let Some(Attached { head, entries }) = page else {
            let had_log = ring.clear();
            return (ring.mark_current(began) || had_log, true);
        };
        let next = from.map_or(1, |from| from.offset + 1);
        let contiguous = entries.first().is_none_or(|entry| entry.at.offset == next);
        if from.is_none_or(|from| !head.holds(from)) || !contiguous {
            // Begin at the newest entries; a follower behind them reads the store itself.
            let oldest = head.first.max(head.last.saturating_sub(MAX_ENTRIES as u64));
            let base = cursor_before(&head, oldest);
            ring.restart(base);
            if base.offset + 1 != next {
                return (false, false);
            }
        }
        let changed = ring.extend(&head, &entries);
        let last = entries.is_empty() || ring.end().is_some_and(|end| end.offset == head.last);
        (last && ring.mark_current(began) || changed, last)
    }
}

/// The cursor of a reader that gets the entry with this offset next.
pub(super) fn cursor_before(head: &JobHead, offset: u64) -> Cursor {
    let offset = offset.max(1);
    let epoch = head.epochs.at(offset - 1).or(head.epochs.at(offset));
    Cursor { epoch: epoch.unwrap_or(head.epochs.last()), offset: offset - 1 }
}

pub(super) async fn attach(
    store: &dyn Store,
    job: &Key,
    after: u64,
    max_entries: usize,
) -> StoreResult<Option<Attached>> {
    with_timeout(STORE_TIMEOUT, store.attach(job, after, max_entries)).await
}

pub(super) fn count_read_failure(what: &'static str, error: &StoreError) {
    metric_names::count_store_error(error);
    counter!(metric_names::BUS_READ_FAILURES, "what" => what).increment(1);
    tracing::debug!(reason = error.label(), what, "reading a followed job failed: {error}");
}
