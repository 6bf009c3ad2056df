//! Following a job: every entry after a position, once and in order, and then each new entry.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::feed::{STORE_TIMEOUT, count_read_failure};
use super::frame::{EncodedFrame, JobFrame, JsonFrame};
use super::registry::{FollowRegistry, FollowedJob};
use super::replay::PageReader;
use super::ring::{FollowPosition, RingLookup};
use super::{Bus, BusError};
use crate::activity::{self, Activity, StreamActivity};
use crate::log::{Attached, Cursor, MAX_NUMBER, PageRequest, SeqSearch};
use crate::{Key, StoreResult, metric_names, with_timeout};

/// How long a follower waits before it asks the store again, where the store had nothing for it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// How long a new follower waits for the first read of the job.
const FIRST_READ_TIMEOUT: Duration = Duration::from_secs(5);

/// Where following a job begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// At the first event.
    Start,
    /// After this entry.
    Cursor(Cursor),
    /// After the entry with the highest seq up to this one. At least once: a late entry with a
    /// lower seq may be delivered again.
    Seq(u64),
}

/// The answer of [`Follower::next`] and [`MultiFollower::next`](super::MultiFollower::next).
#[derive(Clone, Debug)]
pub enum NextFrames<F = JobFrame> {
    /// One or more frames.
    Frames(Vec<F>),
    /// The job is closed, and every entry was delivered.
    Complete,
    /// The bus has stopped; follow the job again elsewhere.
    Stopped,
}

/// The answer of [`Follower::ready`].
pub enum ReadyFrames<F = JsonFrame> {
    /// The next frames; pass them to [`Follower::mark_seen`] once they are delivered.
    Frames(Vec<JobFrame<F>>),
    /// Every entry so far was delivered.
    CaughtUp,
    /// Call [`Follower::next`]: the job ended, there is a gap, or only the store has the entries.
    AskStore,
}

/// Notifies that a job may have new frames for its followers.
pub struct JobUpdates(watch::Receiver<()>);

impl JobUpdates {
    /// Waits for an update. Updates since the last call are not missed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The job has no followers any more.
            std::future::pending().await
        }
    }
}

/// A follower of one job: a cursor on the ring that all followers of the job share, or, if it is
/// behind that, on a page of the log that it shares with the followers at the same place.
pub struct Follower<F = JsonFrame> {
    job: Arc<FollowedJob<F>>,
    ring_changed: watch::Receiver<()>,
    position: FollowPosition,
    /// The page that is read, while the position is not in the ring.
    page: Option<PageReader<F>>,
    /// Whether to ask the store again without waiting for the ring to change.
    ask_again: bool,
}

impl<F: EncodedFrame> Bus<F> {
    /// Follows a job; `None` where the job is closed and every entry was seen. A job without events
    /// is waited for.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use hapax_core::{bus::{Bus, BusError, FollowFrom, NewEvent, NextFrames}, memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BusError> {
    /// let bus = Bus::new(Arc::new(MemoryStore::default()));
    /// bus.publish(&NewEvent::new("scan", "job-1", "vision", 10)).await?;
    /// let mut job = bus.follow("scan", "job-1", FollowFrom::Start).await?.unwrap();
    /// let NextFrames::Frames(frames) = job.next().await else { panic!() };
    /// assert!(frames[0].encoded().json().starts_with(b"{\"offset\":1,"));
    /// # Ok(()) }
    /// ```
    pub async fn follow(
        &self,
        domain: &str,
        job_id: &str,
        from: FollowFrom,
    ) -> Result<Option<Follower<F>>, BusError> {
        let job = Key::job(&self.tenant, domain, job_id)?;
        Ok(Follower::begin(&self.shared.registry, &job, from).await?)
    }
}

impl<F: EncodedFrame> Follower<F> {
    pub(super) async fn begin(
        registry: &Arc<FollowRegistry<F>>,
        job: &Key,
        from: FollowFrom,
    ) -> StoreResult<Option<Self>> {
        let position = match from {
            FollowFrom::Start => FollowPosition::Start,
            FollowFrom::Cursor(cursor) => FollowPosition::After(cursor),
            FollowFrom::Seq(seq) => position_after_seq(registry, job, seq).await?,
        };
        let followed = registry.follow(job, position);
        let mut ring_changed = followed.feed.ring_changed.subscribe();
        let first_read = ring_changed.wait_for(|()| followed.feed.ring().tried);
        let _ = timeout(FIRST_READ_TIMEOUT, first_read).await;
        let (page, ask_again) = (None, false);
        let follower = Self { job: followed, ring_changed, position, page, ask_again };
        Ok(if follower.is_complete().await? { None } else { Some(follower) })
    }

    /// Whether the job is closed and every entry was seen. Asks the store where the ring does not
    /// know, which also tells whether the store answers.
    async fn is_complete(&self) -> StoreResult<bool> {
        match self.job.feed.ring().after(self.position) {
            RingLookup::Complete => return Ok(true),
            RingLookup::NotInRing => {}
            RingLookup::Frames(_) | RingLookup::CaughtUp => return Ok(false),
        }
        let attached = self.job.attach(&PageRequest::new(MAX_NUMBER, 0)).await?;
        Ok(attached.is_some_and(|Attached { head, .. }| {
            matches!(self.position, FollowPosition::After(cursor)
                if head.closed && cursor.offset == head.last && head.holds(cursor))
        }))
    }

    /// The followed job.
    pub fn job(&self) -> &Key {
        &self.job.feed.job
    }

    /// The cursor of the last frame seen; `None` before the first one.
    pub fn cursor(&self) -> Option<Cursor> {
        match self.position {
            FollowPosition::Start => None,
            FollowPosition::After(cursor) => Some(cursor),
        }
    }

    /// Waits for the next frames. Cancel-safe: dropping the future loses nothing.
    pub async fn next(&mut self) -> NextFrames<JobFrame<F>> {
        loop {
            match self.try_next().await {
                Some(next) => return next,
                None => self.changed().await,
            }
        }
    }

    /// The frames that are in the ring already. Neither waits nor moves the cursor.
    pub fn ready(&self) -> ReadyFrames<F> {
        if self.job.registry.is_stopped() {
            return ReadyFrames::AskStore;
        }
        match self.job.feed.ring().after(self.position) {
            RingLookup::Frames(frames) => ReadyFrames::Frames(frames),
            RingLookup::CaughtUp => ReadyFrames::CaughtUp,
            RingLookup::Complete | RingLookup::NotInRing => ReadyFrames::AskStore,
        }
    }

    /// Whether every entry so far was delivered, as far as memory tells.
    pub fn is_caught_up(&self) -> bool {
        matches!(self.ready(), ReadyFrames::CaughtUp)
    }

    /// Moves the cursor behind frames that [`Follower::ready`] gave and that were delivered.
    pub fn mark_seen(&mut self, frames: &[JobFrame<F>]) {
        if let Some(cursor) = frames.iter().rev().find_map(JobFrame::at) {
            self.move_to(FollowPosition::After(cursor));
        }
    }

    /// Moves to a position outside of the page that was read.
    fn move_to(&mut self, position: FollowPosition) {
        self.position = position;
        self.page = None;
    }

    /// Gives up the page of the log that was read last, which is otherwise kept for followers at the
    /// same place until [`Follower::next`] is called again.
    pub fn release_page(&mut self) {
        self.page = None;
    }

    /// Update notifications of the job, for a task that writes to many of its followers.
    pub fn updates(&self) -> JobUpdates {
        JobUpdates(self.job.feed.ring_changed.subscribe())
    }

    /// The next frames, from the ring or else from the store; does not wait for new ones.
    pub(super) async fn try_next(&mut self) -> Option<NextFrames<JobFrame<F>>> {
        self.ring_changed.mark_unchanged();
        if self.job.registry.is_stopped() {
            return Some(NextFrames::Stopped);
        }
        self.ask_again = false;
        let found = self.job.feed.ring().after(self.position);
        match found {
            RingLookup::Frames(frames) => Some(self.deliver(frames)),
            RingLookup::CaughtUp => {
                self.page = None;
                None
            }
            RingLookup::Complete => Some(NextFrames::Complete),
            RingLookup::NotInRing => {
                // The ring is behind or ahead of this follower, or the log has a new epoch.
                self.ask_again = true;
                self.next_from_store().await
            }
        }
    }

    /// Waits until there may be new frames.
    pub(super) async fn changed(&mut self) {
        if !self.ask_again {
            if self.ring_changed.changed().await.is_err() {
                sleep(RETRY_INTERVAL).await;
            }
            return;
        }
        self.job.feed.notify_reader();
        let _ = timeout(RETRY_INTERVAL, self.ring_changed.changed()).await;
    }

    fn deliver(&mut self, frames: Vec<JobFrame<F>>) -> NextFrames<JobFrame<F>> {
        self.mark_seen(&frames);
        NextFrames::Frames(frames)
    }

    /// The next frames of the page that is read, or of the next page.
    async fn next_from_store(&mut self) -> Option<NextFrames<JobFrame<F>>> {
        if let Some(frames) = self.page.as_mut().and_then(PageReader::next_batch) {
            return Some(self.deliver_from_page(frames));
        }
        let mut reader = self.job.page_after(self.position).await;
        let page = reader.page()?;
        if !page.is_held {
            return self.gap().await;
        }
        if page.is_complete {
            return Some(NextFrames::Complete);
        }
        let frames = reader.next_batch()?;
        self.page = Some(reader);
        Some(self.deliver_from_page(frames))
    }

    fn deliver_from_page(&mut self, frames: Vec<JobFrame<F>>) -> NextFrames<JobFrame<F>> {
        let page = self.page.take().filter(PageReader::is_worth_keeping);
        let delivered = self.deliver(frames);
        self.page = page;
        delivered
    }

    /// A gap and a snapshot of the job, or a gap alone if the job has no log. The page that showed it
    /// may have been read for another follower, and earlier: a new read decides.
    async fn gap(&mut self) -> Option<NextFrames<JobFrame<F>>> {
        let attached = self.job.attach(&PageRequest::state_only()).await;
        let attached = attached.inspect_err(|error| count_read_failure("job", error)).ok()?;
        let from = self.position.offset() + 1;
        let Some(Attached { head, .. }) = attached else {
            return self.forgotten(from);
        };
        if self.position.is_held(&head) {
            return None;
        }
        let at = self.cursor().map_or_else(|| head.start(), |cursor| head.resume(cursor));
        let snapshot = JobFrame::snapshot(at, head.state.as_ref()?);
        self.count_gap();
        Some(self.deliver(vec![JobFrame::gap(None, from, Some(at.offset)), snapshot]))
    }

    fn count_gap(&self) {
        counter!(metric_names::BUS_GAPS).increment(1);
        let tenant = self.job().tenant();
        activity::record(Activity::Stream { tenant, change: StreamActivity::Gap });
    }

    /// The gap for a cursor of a job without a log. The follower then waits for the first event.
    fn forgotten(&mut self, from: u64) -> Option<NextFrames<JobFrame<F>>> {
        if self.position == FollowPosition::Start {
            return None;
        }
        self.count_gap();
        self.move_to(FollowPosition::Start);
        Some(NextFrames::Frames(vec![JobFrame::gap(None, from, None)]))
    }
}

/// The position after the entry with the highest seq up to this one; of several entries with that
/// seq the first one, so that none is skipped. Where that entry may have been trimmed, the start.
async fn position_after_seq<F: EncodedFrame>(
    registry: &FollowRegistry<F>,
    job: &Key,
    seq: u64,
) -> StoreResult<FollowPosition> {
    let _permit = registry.store_reads.acquire().await;
    let search = with_timeout(STORE_TIMEOUT, registry.store().find_seq(job, seq)).await?;
    let found = search.and_then(|SeqSearch { first, found }| {
        found.filter(|found| first <= 1 || found.seq == seq)
    });
    Ok(found.map_or(FollowPosition::Start, |found| FollowPosition::After(found.at)))
}
