//! One followed job: a ring of frames, and the task that keeps it current.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::counter;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::frame::EncodedFrame;
use super::replay::ReplayPages;
use super::ring::{FollowPosition, MAX_BYTES, MAX_ENTRIES, Ring};
use crate::log::{Attached, Cursor, JobHead, LogEntry, PageRequest};
use crate::{Key, Store, StoreError, StoreResult, metric_names, with_timeout};

/// For stores that do not bound their calls themselves.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a job is read without a hint: a failover that loses entries appends nothing.
const READ_INTERVAL: Duration = Duration::from_secs(30);
/// The pause after a failed store call, at first and at most.
const MIN_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(2);

pub(super) struct JobFeed<F> {
    pub(super) job: Key,
    /// Where the first follower begins. The first read begins there, too: it reads what that
    /// follower needs, and nothing before it.
    start: FollowPosition,
    ring: Mutex<Ring<F>>,
    pub(super) pages: ReplayPages<F>,
    /// The first page of the log, if the ring could not begin with it: the first follower takes it,
    /// instead of reading it again.
    first_page: Mutex<Option<Attached>>,
    /// Tells followers that the ring has changed.
    pub(super) ring_changed: watch::Sender<()>,
    /// Tells the reading task that the log may have changed.
    log_changed: Notify,
}

impl<F: EncodedFrame> JobFeed<F> {
    pub(super) fn new(job: Key, start: FollowPosition) -> Self {
        let (ring_changed, log_changed) = (watch::Sender::new(()), Notify::new());
        let (ring, pages, first_page) =
            (Mutex::default(), ReplayPages::default(), Mutex::default());
        Self { job, start, ring, pages, first_page, ring_changed, log_changed }
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
            let (from, is_first) = {
                let ring = self.ring();
                (ring.end(), !ring.was_read())
            };
            let start = if is_first { self.start.offset() } else { 0 };
            let after = from.map_or(start, |cursor| cursor.offset);
            let request = PageRequest::new(after, MAX_ENTRIES).bytes(MAX_BYTES);
            let attached = attach(store, &self.job, &request).await?;
            self.keep_first_page(attached.as_ref().filter(|_| is_first));
            let (changed, is_last_page) = self.add_page(from, attached, began);
            if changed {
                self.ring_changed.send_replace(());
            }
            if is_last_page {
                return Ok(());
            }
        }
    }

    fn first_page(&self) -> MutexGuard<'_, Option<Attached>> {
        self.first_page.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first page if the ring will not begin with it, and until the next read.
    fn keep_first_page(&self, page: Option<&Attached>) {
        let is_behind = |page: &&Attached| newest_part(&page.head, &page.entries).is_empty();
        *self.first_page() = page.filter(is_behind).cloned();
    }

    /// The page that the first read of the log found after this position, once.
    pub(super) fn take_first_page(&self, position: FollowPosition) -> Option<Attached> {
        let mut page = self.first_page();
        if position == self.start { page.take() } else { None }
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
        let is_next = entries.first().is_none_or(|entry| entry.at.offset == next);
        let continues = is_next && from.is_some_and(|from| head.holds(from));
        let entries = if continues {
            head.up_to_loss(&entries)
        } else {
            // Begin with this page if it is the newest part of the log, else empty at the end;
            // a follower behind that reads the store itself.
            let newest = newest_part(&head, &entries);
            ring.restart(newest.first().map_or(head.end(), |e| head.epochs.before(e.at.offset)));
            newest
        };
        let changed = ring.extend(&head, entries) || !continues;
        let last = entries.is_empty() || ring.end().is_some_and(|end| end.offset == head.last);
        (last && ring.mark_current(began) || changed, last)
    }
}

/// The entries since the last loss, if they reach the end of the log; otherwise none.
fn newest_part<'a>(head: &JobHead, entries: &'a [LogEntry]) -> &'a [LogEntry] {
    let reaches_end = entries.last().is_some_and(|entry| entry.at.offset == head.last);
    let lost = entries.partition_point(|entry| entry.at.offset < head.epochs.last_loss());
    if reaches_end { &entries[lost..] } else { &[] }
}

pub(super) async fn attach(
    store: &dyn Store,
    job: &Key,
    request: &PageRequest,
) -> StoreResult<Option<Attached>> {
    with_timeout(STORE_TIMEOUT, store.attach(job, request)).await
}

pub(super) fn count_read_failure(what: &'static str, error: &StoreError) {
    metric_names::count_store_error(error);
    counter!(metric_names::BUS_READ_FAILURES, "what" => what).increment(1);
    tracing::debug!(reason = error.label(), what, "reading a followed job failed: {error}");
}
