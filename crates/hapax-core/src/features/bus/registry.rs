//! The jobs that are followed now, and the poll that finds appends whose hint was lost.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use metrics::{counter, gauge};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::feed::{JobFeed, STORE_TIMEOUT, count_read_failure};
use super::frame::EncodedFrame;
use super::ring::FollowPosition;
use crate::log::{PartitionTail, TailPosition};
use crate::{Key, Store, StoreResult, metric_names, with_timeout};

/// How many changes of one partition one store call reads.
const MAX_CHANGES: usize = 512;
/// How many followers may read the store at once, where the ring does not hold their position.
const MAX_STORE_READS: usize = 16;
/// How many bytes of pages the followers of all jobs keep together.
const PAGE_MEMORY: usize = 64 << 20;

pub(super) struct FollowRegistry<F> {
    store: Arc<dyn Store>,
    poll_interval: Duration,
    table: Mutex<FollowTable<F>>,
    stopped: AtomicBool,
    pub(super) store_reads: Semaphore,
    /// The bytes that are left for pages.
    pub(super) page_memory: Arc<Semaphore>,
}

struct FollowTable<F> {
    jobs: HashMap<Key, Weak<FollowedJob<F>>>,
    /// When the last complete read of the tail began; `None` while no job is followed.
    unread_since: Option<Instant>,
}

/// A job that is followed for as long as this value lives; shared by all of its followers.
pub(super) struct FollowedJob<F> {
    pub(super) feed: Arc<JobFeed<F>>,
    pub(super) registry: Arc<FollowRegistry<F>>,
    reader: AbortHandle,
}

impl<F> Drop for FollowedJob<F> {
    fn drop(&mut self) {
        self.reader.abort();
        let mut table = self.registry.table();
        // A new follower may have replaced this entry already.
        let is_self = |followed: &Weak<Self>| std::ptr::eq(followed.as_ptr(), self);
        if table.jobs.get(&self.feed.job).is_some_and(is_self) {
            table.jobs.remove(&self.feed.job);
        }
    }
}

impl<F> FollowRegistry<F> {
    fn table(&self) -> MutexGuard<'_, FollowTable<F>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: EncodedFrame> FollowRegistry<F> {
    pub(super) fn new(store: Arc<dyn Store>, poll_interval: Duration) -> Arc<Self> {
        let table = Mutex::new(FollowTable { jobs: HashMap::new(), unread_since: None });
        let (stopped, store_reads) = (AtomicBool::new(false), Semaphore::new(MAX_STORE_READS));
        let page_memory = Arc::new(Semaphore::new(PAGE_MEMORY));
        Arc::new(Self { store, poll_interval, table, stopped, store_reads, page_memory })
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Follows a job from a position, together with its other followers.
    pub(super) fn follow(
        self: &Arc<Self>,
        job: &Key,
        start: FollowPosition,
    ) -> Arc<FollowedJob<F>> {
        let mut table = self.table();
        if let Some(followed) = table.jobs.get(job).and_then(Weak::upgrade) {
            return followed;
        }
        let feed = Arc::new(JobFeed::new(job.clone(), start));
        let (reading, store) = (feed.clone(), self.store.clone());
        let reader = tokio::spawn(async move { reading.keep_current(&*store).await });
        let followed =
            Arc::new(FollowedJob { feed, registry: self.clone(), reader: reader.abort_handle() });
        table.jobs.insert(job.clone(), Arc::downgrade(&followed));
        if table.unread_since.is_none() {
            table.unread_since = Some(Instant::now());
            tokio::spawn(self.clone().poll_tail());
        }
        followed
    }

    /// How many followers the job has in this process.
    pub(super) fn followers(&self, job: &Key) -> usize {
        self.table().jobs.get(job).map_or(0, Weak::strong_count)
    }

    /// How long ago the tail was read to its end; zero while no job is followed.
    pub(super) fn tail_age(&self) -> Duration {
        self.table().unread_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Ends all followers.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        for followed in self.followed_jobs() {
            followed.feed.ring_changed.send_replace(());
        }
    }

    fn followed_jobs(&self) -> Vec<Arc<FollowedJob<F>>> {
        self.table().jobs.values().filter_map(Weak::upgrade).collect()
    }

    /// Reads the tail of the partitions of all followed jobs until no job is followed.
    async fn poll_tail(self: Arc<Self>) {
        let mut reader = TailReader { positions: BTreeMap::new(), asked_at: Instant::now() };
        loop {
            tokio::time::sleep(self.poll_interval).await;
            {
                let mut table = self.table();
                if table.jobs.is_empty() {
                    table.unread_since = None;
                    gauge!(metric_names::BUS_TAIL_AGE).set(0.0);
                    return;
                }
            }
            let began = Instant::now();
            match reader.read(&*self.store, &self.followed_jobs()).await {
                Ok(()) => self.table().unread_since = Some(began),
                Err(error) => count_read_failure("tail", &error),
            }
            gauge!(metric_names::BUS_TAIL_AGE).set(self.tail_age().as_secs_f64());
        }
    }
}

/// How far the tail of each partition was read.
struct TailReader {
    positions: BTreeMap<u16, TailPosition>,
    /// When the previous store call was made.
    asked_at: Instant,
}

impl TailReader {
    /// Reads to the end, and notifies the reading task of every job that missed a change.
    async fn read<F: EncodedFrame>(
        &mut self,
        store: &dyn Store,
        followed: &[Arc<FollowedJob<F>>],
    ) -> StoreResult<()> {
        let mut partitions: HashMap<u16, Vec<&JobFeed<F>>> = HashMap::new();
        for followed in followed {
            let partition = followed.feed.job.partition(store.partitions());
            partitions.entry(partition).or_default().push(&followed.feed);
        }
        self.positions.retain(|partition, _| partitions.contains_key(partition));
        let mut unread: Vec<_> = partitions
            .keys()
            .map(|p| (*p, self.positions.get(p).cloned().unwrap_or_else(TailPosition::end)))
            .collect();
        while !unread.is_empty() {
            let asked_at = Instant::now();
            let tails = with_timeout(STORE_TIMEOUT, store.tail(&unread, MAX_CHANGES)).await?;
            let mut full = Vec::new();
            for ((partition, _), tail) in unread.into_iter().zip(tails) {
                // The position of a partition that is read for the first time is later than the
                // first read of its jobs: changes in between may have been missed.
                let may_have_missed = !self.positions.contains_key(&partition) || tail.lost;
                let feeds = partitions.get(&partition).map(Vec::as_slice).unwrap_or_default();
                notify_readers(feeds, &tail, may_have_missed, self.asked_at);
                if tail.changes.len() >= MAX_CHANGES {
                    full.push((partition, tail.next.clone()));
                }
                self.positions.insert(partition, tail.next);
            }
            self.asked_at = asked_at;
            unread = full;
        }
        Ok(())
    }
}

fn notify_readers<F: EncodedFrame>(
    feeds: &[&JobFeed<F>],
    tail: &PartitionTail,
    may_have_missed: bool,
    since: Instant,
) {
    for feed in feeds {
        let newest = tail.changes.iter().rev().find(|change| change.job == feed.job);
        let missed = newest.is_some_and(|change| !feed.ring().has(change.offset, since));
        if missed {
            counter!(metric_names::BUS_MISSED_HINTS).increment(1);
        }
        if missed || may_have_missed {
            feed.notify_reader();
        }
    }
}
