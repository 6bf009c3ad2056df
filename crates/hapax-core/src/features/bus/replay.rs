//! Pages of a job's log for followers whose position is not in the ring. Followers that ask for the
//! same page share one read, and what was read is delivered before the store is asked again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::feed::{attach, count_read_failure};
use super::frame::{EncodedFrame, JobFrame};
use super::registry::FollowedJob;
use super::ring::{FollowPosition, MAX_BATCH_BYTES, MAX_BATCH_FRAMES, first_batch};
use crate::StoreResult;
use crate::log::{Attached, PageRequest};

/// How many entries one page has, and how many bytes of payload; at least one entry. The bytes are
/// those of one batch: what a follower has not taken when it leaves was read in vain.
const PAGE_ENTRIES: usize = 1000;
const PAGE_BYTES: u32 = MAX_BATCH_BYTES as u32;

/// One page. Empty if the position is not held, or has no entries after it yet.
pub(super) struct ReplayPage<F> {
    frames: Vec<JobFrame<F>>,
    /// Whether the log has the entries after the position, or none were appended yet.
    pub(super) is_held: bool,
    /// Whether the job is closed, and the position is at its end.
    pub(super) is_complete: bool,
    /// The share of the memory for pages; `None` for a page that is delivered in one batch.
    memory: Option<OwnedSemaphorePermit>,
}

/// Set by the first follower that asks; `None` inside if the read failed.
type PageCell<F> = OnceCell<Option<ReplayPage<F>>>;

/// The pages of one job that a follower is reading, or has just read.
pub(super) struct ReplayPages<F>(Mutex<HashMap<FollowPosition, Weak<PageCell<F>>>>);

impl<F> Default for ReplayPages<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<F> ReplayPages<F> {
    fn cell(&self, position: FollowPosition) -> Arc<PageCell<F>> {
        let mut cells = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cell) = cells.get(&position).and_then(Weak::upgrade) {
            return cell;
        }
        cells.retain(|_, cell| cell.strong_count() > 0);
        let cell = Arc::default();
        cells.insert(position, Arc::downgrade(&cell));
        cell
    }
}

/// A follower's place in a page. The page is kept until the follower asks for the next one, so that
/// a slower follower at the same place finds it.
pub(super) struct PageReader<F> {
    cell: Arc<PageCell<F>>,
    next: usize,
}

impl<F: EncodedFrame> PageReader<F> {
    /// The page; `None` if reading it failed.
    pub(super) fn page(&self) -> Option<&ReplayPage<F>> {
        self.cell.get()?.as_ref()
    }

    /// The next frames of the page; `None` at its end.
    pub(super) fn next_batch(&mut self) -> Option<Vec<JobFrame<F>>> {
        let batch = first_batch(self.page()?.frames.get(self.next..)?.iter());
        self.next += batch.len();
        (!batch.is_empty()).then_some(batch)
    }

    /// Whether another follower may still find the page; one without memory of its own goes at once.
    pub(super) fn is_worth_keeping(&self) -> bool {
        self.page().is_some_and(|page| page.memory.is_some())
    }
}

impl<F: EncodedFrame> FollowedJob<F> {
    /// The page after this position, read once for all followers that ask for it meanwhile.
    pub(super) async fn page_after(&self, position: FollowPosition) -> PageReader<F> {
        let cell = self.feed.pages.cell(position);
        let read = || async {
            let page = self.read_page(position).await;
            page.inspect_err(|error| count_read_failure("job", error)).ok()
        };
        cell.get_or_init(read).await;
        PageReader { cell, next: 0 }
    }

    async fn read_page(&self, position: FollowPosition) -> StoreResult<ReplayPage<F>> {
        let mut memory = self.registry.page_memory.clone().try_acquire_many_owned(PAGE_BYTES).ok();
        let after = position.offset();
        let attached = match self.feed.take_first_page(position) {
            Some(attached) => Some(attached),
            None => {
                // Without memory the page is as large as one batch, which is delivered at once.
                let most = if memory.is_some() { PAGE_ENTRIES } else { MAX_BATCH_FRAMES };
                let request = PageRequest::new(after, self.entries_before_ring(after, most));
                self.attach(&request.bytes(PAGE_BYTES as usize)).await?
            }
        };
        let Some(Attached { head, entries }) = attached.filter(|a| position.is_held(&a.head))
        else {
            let (is_held, is_complete) = (false, false);
            return Ok(ReplayPage { frames: Vec::new(), is_held, is_complete, memory: None });
        };
        let frames: Vec<_> = head.up_to_loss(&entries).iter().map(JobFrame::entry).collect();
        if let Some(memory) = &mut memory {
            let size: usize = frames.iter().map(JobFrame::size).sum();
            // A single event, or the first page of the log, may be larger than a page; then its
            // share is what a page has.
            drop(memory.split((PAGE_BYTES as usize).saturating_sub(size)));
        }
        let is_complete = frames.is_empty() && head.closed && after >= head.last;
        Ok(ReplayPage { frames, is_held: true, is_complete, memory })
    }

    /// How many entries a page after this offset has: those that are in the ring are taken from
    /// there.
    fn entries_before_ring(&self, after: u64, most: usize) -> usize {
        let before = self.feed.ring().base_offset().and_then(|base| base.checked_sub(after));
        before.filter(|before| *before > 0).map_or(most, |before| most.min(before as usize))
    }

    /// Reads the job, waiting for one of the limited number of reads.
    pub(super) async fn attach(&self, request: &PageRequest) -> StoreResult<Option<Attached>> {
        let _permit = self.registry.store_reads.acquire().await;
        attach(self.registry.store(), &self.feed.job, request).await
    }
}
