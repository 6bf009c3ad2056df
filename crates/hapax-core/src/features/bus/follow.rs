//! Following a job: everything after a place, each entry once and in order, and then whatever comes.

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::feed::{PAGE, attach, before};
use super::frame::Frame;
use super::registry::{Followed, Registry};
use super::ring::{At, Found, some_of};
use super::{Bus, BusError};
use crate::log::{Attached, Cursor};
use crate::{Key, StoreError, metric_names};

/// How long a follower waits for the ring where the store itself had nothing for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long whoever begins waits for the first look at the job.
const FIRST_LOOK: Duration = Duration::from_secs(5);

/// From where a job is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowFrom {
    /// From its first event.
    Start,
    /// From behind this entry.
    Cursor(Cursor),
    /// From behind the entry with the highest seq up to this one. At least once: a late entry with a
    /// lower seq may come again.
    Seq(u64),
}

/// What comes next.
#[derive(Clone, Debug)]
pub enum NextFrames<F = Frame> {
    /// One or more frames.
    Frames(Vec<F>),
    /// Nothing any more: the job is closed, and everything was seen.
    Complete,
    /// The bus has stopped; the job goes on elsewhere.
    Stopped,
}

/// What there is for a follower without asking the store.
pub enum ReadyFrames {
    /// These come next; tell with [`Follower::seen`] that they were taken.
    Frames(Vec<Frame>),
    /// Nothing yet.
    Nothing,
    /// [`Follower::next`] knows: the end, a gap, or what only the store has.
    Ask,
}

/// Tells that there may be something for the followers of a job.
pub struct JobUpdates(watch::Receiver<()>);

impl JobUpdates {
    /// Waits for it. What came since the last wait is not missed.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody follows the job any more.
            std::future::pending().await
        }
    }
}

/// A follower of one job: a cursor on the job's ring. Who does not ask for more keeps nothing but
/// that.
pub struct Follower {
    followed: Arc<Followed>,
    news: watch::Receiver<()>,
    at: At,
    /// Whether the ring alone may not wake it.
    unsure: bool,
}

impl Bus {
    /// Follows a job; `None` where it is closed and everything was seen. A job that has no events
    /// yet is waited for.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use hapax_core::{bus::{Bus, BusError, NewEvent, NextFrames, FollowFrom}, memory::MemoryStore};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BusError> {
    /// let bus = Bus::new(Arc::new(MemoryStore::default()));
    /// bus.publish(&NewEvent::new("scan", "job-1", "vision", 10)).await?;
    /// let mut job = bus.follow("scan", "job-1", FollowFrom::Start).await?.unwrap();
    /// let NextFrames::Frames(frames) = job.next().await else { panic!() };
    /// assert!(frames[0].json().starts_with(b"{\"offset\":1,"));
    /// # Ok(()) }
    /// ```
    pub async fn follow(
        &self,
        domain: &str,
        job_id: &str,
        since: FollowFrom,
    ) -> Result<Option<Follower>, BusError> {
        let job = Key::job(&self.tenant, domain, job_id)?;
        Ok(Follower::begin(&self.shared.registry, &job, since).await?)
    }
}

impl Follower {
    pub(super) async fn begin(
        registry: &Arc<Registry>,
        job: &Key,
        since: FollowFrom,
    ) -> Result<Option<Self>, StoreError> {
        let followed = registry.follow(job);
        let mut news = followed.feed.news.subscribe();
        let first_look = news.wait_for(|()| followed.feed.ring().tried);
        let _ = timeout(FIRST_LOOK, first_look).await;
        let at = match since {
            FollowFrom::Start => At::Start,
            FollowFrom::Cursor(cursor) => At::After(cursor),
            FollowFrom::Seq(seq) => behind(registry, job, seq).await?,
        };
        let follower = Self { followed, news, at, unsure: false };
        Ok(if follower.is_complete().await? { None } else { Some(follower) })
    }

    /// Whether the job is closed and everything was seen. Asks the store where the ring does not
    /// know, which also tells whether the store answers.
    async fn is_complete(&self) -> Result<bool, StoreError> {
        match self.followed.feed.ring().after(self.at) {
            Found::Complete => return Ok(true),
            Found::Elsewhere => {}
            Found::Frames(_) | Found::Nothing => return Ok(false),
        }
        let attached = self.page(1).await?;
        Ok(attached.is_some_and(|Attached { head, .. }| {
            matches!(self.at, At::After(cursor)
                if head.closed && cursor.offset == head.last && head.holds(cursor))
        }))
    }

    /// Which job it is.
    pub fn job(&self) -> &Key {
        &self.followed.feed.job
    }

    /// What was seen; `None` where that is nothing yet.
    pub fn cursor(&self) -> Option<Cursor> {
        match self.at {
            At::Start => None,
            At::After(cursor) => Some(cursor),
        }
    }

    /// Waits for what comes next. Whoever drops the future in between misses nothing.
    pub async fn next(&mut self) -> NextFrames {
        loop {
            match self.try_next().await {
                Some(next) => return next,
                None => self.changed().await,
            }
        }
    }

    /// What there is for it already: nothing is waited for, and nothing is taken.
    pub fn ready(&self) -> ReadyFrames {
        if self.followed.registry.is_stopped() {
            return ReadyFrames::Ask;
        }
        match self.followed.feed.ring().after(self.at) {
            Found::Frames(frames) => ReadyFrames::Frames(frames),
            Found::Nothing => ReadyFrames::Nothing,
            Found::Complete | Found::Elsewhere => ReadyFrames::Ask,
        }
    }

    /// It has taken these frames, which were [`Follower::ready`] for it.
    pub fn seen(&mut self, frames: &[Frame]) {
        if let Some(cursor) = frames.iter().rev().find_map(Frame::at) {
            self.at = At::After(cursor);
        }
    }

    /// What wakes its kind, for somebody who writes to many.
    pub fn news(&self) -> JobUpdates {
        JobUpdates(self.followed.feed.news.subscribe())
    }

    /// What comes next, without waiting for it. The store is asked where the ring has it not.
    pub(super) async fn try_next(&mut self) -> Option<NextFrames> {
        self.news.mark_unchanged();
        if self.followed.registry.is_stopped() {
            return Some(NextFrames::Stopped);
        }
        self.unsure = false;
        let found = self.followed.feed.ring().after(self.at);
        match found {
            Found::Frames(frames) => Some(self.take(frames)),
            Found::Nothing => None,
            Found::Complete => Some(NextFrames::Complete),
            Found::Elsewhere => {
                // The ring is behind us, or we are behind it, or the log has another life.
                self.unsure = true;
                match self.page(PAGE).await {
                    Ok(attached) => attached.and_then(|attached| self.read(&attached)),
                    Err(error) => {
                        super::feed::read_failed("job", &error);
                        None
                    }
                }
            }
        }
    }

    /// Waits until there may be something.
    pub(super) async fn changed(&mut self) {
        if !self.unsure {
            if self.news.changed().await.is_err() {
                sleep(PATIENCE).await;
            }
            return;
        }
        // Whatever the reason, the reader should look; and so do we, in any case.
        self.followed.feed.poke();
        let _ = timeout(PATIENCE, self.news.changed()).await;
    }

    fn take(&mut self, frames: Vec<Frame>) -> NextFrames {
        self.seen(&frames);
        NextFrames::Frames(frames)
    }

    async fn page(&self, at_most: usize) -> Result<Option<Attached>, StoreError> {
        let registry = &self.followed.registry;
        let _place = registry.pages.acquire().await;
        let after = self.cursor().map_or(0, |cursor| cursor.offset);
        attach(registry.store(), self.job(), after, at_most).await
    }

    fn read(&mut self, Attached { head, entries }: &Attached) -> Option<NextFrames> {
        let held = match self.at {
            At::Start => head.first <= 1,
            At::After(cursor) => head.holds(cursor),
        };
        if !held {
            return Some(self.gap(head, head.first));
        }
        let next = self.cursor().map_or(1, |cursor| cursor.offset + 1);
        match entries.first() {
            Some(first) if first.at.offset != next => Some(self.gap(head, first.at.offset)),
            Some(_) => {
                let frames: Vec<_> = entries.iter().map(Frame::entry).collect();
                Some(self.take(some_of(frames.iter())))
            }
            None if head.closed && next > head.last => Some(NextFrames::Complete),
            None => None,
        }
    }

    /// Says what is missing, and how the job stands; goes on with the entry that has this offset.
    fn gap(&mut self, head: &crate::log::JobHead, first: u64) -> NextFrames {
        counter!(metric_names::BUS_GAPS).increment(1);
        let from = self.cursor().map_or(1, |cursor| cursor.offset + 1);
        let at = before(head, first);
        let gap = Frame::gap(from, at.offset);
        self.take(vec![gap, Frame::snapshot(at, &head.state)])
    }
}

/// The place behind the entry with the highest seq up to this one; of several with that seq the
/// first, so that none is left out. Where that entry may have been trimmed, everything that is left
/// may be behind it.
async fn behind(registry: &Registry, job: &Key, seq: u64) -> Result<At, StoreError> {
    let mut best: Option<(u64, Cursor)> = None;
    let mut after = 0;
    loop {
        let _place = registry.pages.acquire().await;
        let Some(Attached { head, entries }) = attach(registry.store(), job, after, PAGE).await?
        else {
            return Ok(At::Start);
        };
        for entry in entries.iter().filter(|entry| entry.seq <= seq) {
            if best.is_none_or(|(highest, _)| entry.seq > highest) {
                best = Some((entry.seq, entry.at));
            }
        }
        match entries.last() {
            Some(last) if last.at.offset < head.last => after = last.at.offset,
            _ => {
                let sure = |(highest, _): &(u64, Cursor)| head.first <= 1 || *highest == seq;
                return Ok(best.filter(sure).map_or(At::Start, |(_, cursor)| At::After(cursor)));
            }
        }
    }
}
