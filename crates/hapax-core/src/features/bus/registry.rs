//! Which jobs are followed now, and the poll that finds what a lost hint did not tell.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use metrics::{counter, gauge};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::feed::{CALL_LIMIT, Feed, read_failed};
use crate::log::{PartitionTail, TailPosition};
use crate::{Key, Store, StoreError, metric_names, with_timeout};

/// How many changes of one partition are asked for at once.
const CHANGES: usize = 512;
/// How many followers read the store at once, because the ring has not what they need.
const PAGES: usize = 16;

/// The jobs that are followed.
pub(super) struct Registry {
    store: Arc<dyn Store>,
    poll: Duration,
    table: Mutex<Table>,
    stopped: AtomicBool,
    pub(super) pages: Semaphore,
}

#[derive(Default)]
struct Table {
    followed: HashMap<Key, Weak<Followed>>,
    /// FollowFrom when the tail was not read to its end; `None` while nobody follows anything.
    unread_since: Option<Instant>,
}

/// A job that is followed for as long as somebody holds this.
pub(super) struct Followed {
    pub(super) feed: Arc<Feed>,
    pub(super) registry: Arc<Registry>,
    reader: AbortHandle,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.reader.abort();
        let mut table = self.registry.table();
        // Somebody else may have begun to follow the job again.
        let ours = |followed: &Weak<Self>| std::ptr::eq(followed.as_ptr(), self);
        if table.followed.get(&self.feed.job).is_some_and(ours) {
            table.followed.remove(&self.feed.job);
        }
    }
}

impl Registry {
    pub(super) fn new(store: Arc<dyn Store>, poll: Duration) -> Arc<Self> {
        let (table, stopped) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { store, poll, table, stopped, pages: Semaphore::new(PAGES) })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Follows a job, together with those who already do.
    pub(super) fn follow(self: &Arc<Self>, job: &Key) -> Arc<Followed> {
        let mut table = self.table();
        if let Some(followed) = table.followed.get(job).and_then(Weak::upgrade) {
            return followed;
        }
        let feed = Arc::new(Feed::new(job.clone()));
        let (reading, store) = (feed.clone(), self.store.clone());
        let reader = tokio::spawn(async move { reading.keep_current(&*store).await });
        let followed =
            Arc::new(Followed { feed, registry: self.clone(), reader: reader.abort_handle() });
        table.followed.insert(job.clone(), Arc::downgrade(&followed));
        if table.unread_since.is_none() {
            table.unread_since = Some(Instant::now());
            tokio::spawn(self.clone().read_tail());
        }
        followed
    }

    /// How long ago the tail was read to its end.
    pub(super) fn tail_age(&self) -> Duration {
        self.table().unread_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// Nothing is followed any more; who does is told.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        for followed in self.all() {
            followed.feed.news.send_replace(());
        }
    }

    fn all(&self) -> Vec<Arc<Followed>> {
        self.table().followed.values().filter_map(Weak::upgrade).collect()
    }

    /// Reads the tail of the partitions in which somebody follows a job, for as long as there are
    /// any.
    async fn read_tail(self: Arc<Self>) {
        let mut reader = TailReader { positions: BTreeMap::new(), asked: Instant::now() };
        loop {
            tokio::time::sleep(self.poll).await;
            {
                let mut table = self.table();
                if table.followed.is_empty() {
                    table.unread_since = None;
                    gauge!(metric_names::BUS_TAIL_AGE).set(0.0);
                    return;
                }
            }
            let began = Instant::now();
            match reader.read(&*self.store, &self.all()).await {
                Ok(()) => self.table().unread_since = Some(began),
                Err(error) => read_failed("tail", &error),
            }
            gauge!(metric_names::BUS_TAIL_AGE).set(self.tail_age().as_secs_f64());
        }
    }
}

/// Where the tail was read to.
struct TailReader {
    positions: BTreeMap<u16, TailPosition>,
    /// When the answer before this one was asked for.
    asked: Instant,
}

impl TailReader {
    /// Reads on to the end, and pokes the reader of every job that has changed.
    async fn read(
        &mut self,
        store: &dyn Store,
        followed: &[Arc<Followed>],
    ) -> Result<(), StoreError> {
        let mut partitions: HashMap<u16, Vec<&Feed>> = HashMap::new();
        for followed in followed {
            let partition = followed.feed.job.partition(store.partitions());
            partitions.entry(partition).or_default().push(&followed.feed);
        }
        self.positions.retain(|partition, _| partitions.contains_key(partition));
        let mut questions: Vec<_> = partitions
            .keys()
            .map(|p| (*p, self.positions.get(p).cloned().unwrap_or_else(TailPosition::end)))
            .collect();
        while !questions.is_empty() {
            let asked = Instant::now();
            let tails = with_timeout(CALL_LIMIT, store.tail(&questions, CHANGES)).await?;
            let mut full = Vec::new();
            for ((partition, _), tail) in questions.into_iter().zip(tails) {
                // A position that is taken only now is behind the first look of these jobs.
                let blind = !self.positions.contains_key(&partition) || tail.lost;
                let feeds = partitions.get(&partition).map(Vec::as_slice).unwrap_or_default();
                poke(feeds, &tail, blind, self.asked);
                if tail.changes.len() >= CHANGES {
                    full.push((partition, tail.next.clone()));
                }
                self.positions.insert(partition, tail.next);
            }
            self.asked = asked;
            questions = full;
        }
        Ok(())
    }
}

fn poke(feeds: &[&Feed], tail: &PartitionTail, blind: bool, before: Instant) {
    for feed in feeds {
        let newest = tail.changes.iter().rev().find(|change| change.job == feed.job);
        let missed = newest.is_some_and(|change| !feed.ring().has(change.offset, before));
        if missed {
            counter!(metric_names::BUS_MISSED_HINTS).increment(1);
        }
        if missed || blind {
            feed.poke();
        }
    }
}
