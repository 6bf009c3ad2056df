//! One member of a group: takes its share of the partitions and handles their events.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use metrics::gauge;
use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::Group;
use super::membership::Membership;
use super::page::{FinishedPage, PartitionPage};
use super::partition::{LeaseState, PartitionLease, PartitionProgress};
use crate::log::PartitionTail;
use crate::{StoreResult, deadline_after, metric_names};

/// How many changes of a partition one store call reads.
const MAX_CHANGES: usize = 128;
/// How many partitions are claimed at the same time.
const MAX_CLAIMS: usize = 16;

pub(super) struct GroupMember {
    group: Arc<Group>,
    membership: Membership,
    held: BTreeMap<u16, HeldPartition>,
    pages: JoinSet<FinishedPage>,
    /// The partition of each page, needed where a handler panics.
    partition_of: HashMap<Id, u16>,
    permits: Arc<Semaphore>,
    heartbeat_at: Instant,
    poll_at: Instant,
}

struct HeldPartition {
    lease: PartitionLease,
    /// `None` while a page is being handled, or before the progress was loaded again.
    progress: Option<PartitionProgress>,
    busy: bool,
}

impl GroupMember {
    pub(super) fn new(group: Arc<Group>) -> Self {
        let permits = Arc::new(Semaphore::new(group.config.max_concurrent.max(1)));
        Self {
            membership: Membership::new(&group),
            held: BTreeMap::new(),
            pages: JoinSet::new(),
            partition_of: HashMap::new(),
            permits,
            heartbeat_at: Instant::now(),
            poll_at: Instant::now(),
            group,
        }
    }

    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let stop = async {
                if stopped.wait_for(|stopped| *stopped).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                () = stop => return self.leave().await,
                () = sleep_until(self.heartbeat_at) => self.heartbeat().await,
                Some(done) = self.pages.join_next_with_id() => self.finished(done).await,
                () = sleep_until(self.poll_at) => self.poll().await,
            }
        }
    }

    /// Renews the membership, and takes or releases partitions to hold a fair share.
    async fn heartbeat(&mut self) {
        self.heartbeat_at = deadline_after(Instant::now(), self.group.config.lease / 3);
        let balanced = async {
            let members = self.membership.heartbeat().await?;
            let partitions = usize::from(self.group.store.partitions());
            self.balance(partitions, partitions.div_ceil(members.max(1))).await
        };
        if let Err(error) = balanced.await {
            metric_names::count_store_error(&error);
        }
        let group = self.group.name.to_string();
        gauge!(metric_names::BUS_CONSUMER_PARTITIONS, "group" => group).set(self.held.len() as f64);
    }

    async fn balance(&mut self, partitions: usize, share: usize) -> StoreResult<()> {
        let lost: Vec<_> =
            self.partitions_where(|held| held.lease.is(LeaseState::Lost) && !held.busy);
        lost.iter().for_each(|partition| drop(self.held.remove(partition)));
        let staying = self.partitions_where(|held| held.lease.is(LeaseState::Held));
        for partition in staying.iter().skip(share) {
            self.release(*partition).await;
        }
        let mut missing = share.saturating_sub(staying.len());
        // Each member begins elsewhere, so that members rarely compete for a partition.
        let mix = |hash: usize, byte| (hash * 31 + usize::from(byte)) % partitions.max(1);
        let start = self.membership.id.bytes().fold(0, mix);
        let free = (0..partitions).map(|nth| ((start + nth) % partitions) as u16);
        let free: Vec<_> = free.filter(|partition| !self.held.contains_key(partition)).collect();
        for batch in free.chunks(MAX_CLAIMS) {
            let batch = &batch[..missing.min(batch.len())];
            if batch.is_empty() {
                break;
            }
            missing -= self.take(batch).await?;
        }
        Ok(())
    }

    fn partitions_where(&self, matches: impl Fn(&HeldPartition) -> bool) -> Vec<u16> {
        self.held
            .iter()
            .filter(|(_, held)| matches(held))
            .map(|(partition, _)| *partition)
            .collect()
    }

    /// Takes the partitions that are free; returns how many.
    async fn take(&mut self, partitions: &[u16]) -> StoreResult<usize> {
        let mut claims = JoinSet::new();
        for partition in partitions.iter().copied() {
            let group = self.group.clone();
            claims.spawn(async move {
                let Some(lease) = PartitionLease::take(&group, partition).await? else {
                    return Ok(None);
                };
                let progress = match PartitionProgress::load(&group, partition).await {
                    Ok(progress) => Some(progress),
                    Err(error) => {
                        // Kept, the partition would be idle until the lease runs out.
                        lease.give_back().await;
                        return Err(error);
                    }
                };
                Ok(Some((partition, HeldPartition { lease, progress, busy: false })))
            });
        }
        let mut taken = 0;
        let mut failed = None;
        while let Some(claim) = claims.join_next().await {
            match claim {
                Ok(Ok(Some((partition, held)))) => {
                    self.held.insert(partition, held);
                    taken += 1;
                }
                Ok(Ok(None)) | Err(_) => {}
                Ok(Err(error)) => failed = Some(error),
            }
        }
        failed.map_or(Ok(taken), Err)
    }

    /// Reads the changes of all idle partitions in one store call.
    async fn poll(&mut self) {
        self.poll_at = deadline_after(Instant::now(), self.group.config.poll_interval);
        if let Err(error) = self.read().await {
            metric_names::count_store_error(&error);
        }
    }

    async fn read(&mut self) -> StoreResult<()> {
        for (partition, held) in &mut self.held {
            if held.progress.is_none() && !held.busy {
                held.progress = Some(PartitionProgress::load(&self.group, *partition).await?);
            }
        }
        let idle = |held: &HeldPartition| !held.busy && held.lease.is(LeaseState::Held);
        let from: Vec<_> = self
            .partitions_where(idle)
            .into_iter()
            .filter_map(|id| Some((id, self.held.get(&id)?.progress.as_ref()?.position.clone())))
            .collect();
        if from.is_empty() {
            return Ok(());
        }
        let tails = self.group.store.tail(&from, MAX_CHANGES).await?;
        for ((partition, position), tail) in from.into_iter().zip(tails) {
            if !tail.changes.is_empty() || tail.lost || tail.next != position {
                self.start_page(partition, tail);
            }
        }
        Ok(())
    }

    fn start_page(&mut self, partition: u16, tail: PartitionTail) {
        let Some(held) = self.held.get_mut(&partition) else { return };
        let Some(progress) = held.progress.take() else { return };
        held.busy = true;
        let page = PartitionPage {
            group: self.group.clone(),
            partition,
            fence: held.lease.fence(),
            progress,
            lease: held.lease.state.subscribe(),
        };
        let permits = self.permits.clone();
        let task = self.pages.spawn(async move {
            let _permit = permits.acquire().await;
            page.handle(tail).await
        });
        self.partition_of.insert(task.id(), partition);
    }

    async fn finished(&mut self, done: Result<(Id, FinishedPage), tokio::task::JoinError>) {
        let (id, finished) = match done {
            Ok((id, finished)) => (id, Some(finished)),
            // A panic counts as a failure; the progress is loaded from the store again.
            Err(error) => (error.id(), None),
        };
        let Some(partition) = self.partition_of.remove(&id) else { return };
        let Some(held) = self.held.get_mut(&partition) else { return };
        held.busy = false;
        match finished {
            Some((_, Some(progress))) => {
                held.progress = Some(progress);
                self.poll_at = Instant::now();
            }
            Some((_, None)) => drop(self.held.remove(&partition)),
            None => tracing::error!(partition, "a handler panicked; the event is delivered again"),
        }
        if self.held.get(&partition).is_some_and(|held| !held.lease.is(LeaseState::Held)) {
            self.release(partition).await;
        }
    }

    /// Releases a partition: at once where it is idle, else when the current event is handled.
    async fn release(&mut self, partition: u16) {
        let Some(held) = self.held.get(&partition) else { return };
        held.lease.start_leaving();
        if held.busy {
            return;
        }
        let Some(HeldPartition { lease, progress, .. }) = self.held.remove(&partition) else {
            return;
        };
        if let Some(mut progress) = progress {
            // Where saving fails, the next owner handles these events again.
            let _ = progress.save(&self.group).await;
        }
        lease.give_back().await;
    }

    async fn leave(mut self) {
        let timeout = self.group.config.lease;
        let ending = async {
            for partition in self.partitions_where(|_| true) {
                self.release(partition).await;
            }
            while let Some(done) = self.pages.join_next_with_id().await {
                self.finished(done).await;
            }
            let _ = self.membership.leave().await;
        };
        // After the lease the partitions are taken over anyway.
        let _ = tokio::time::timeout(timeout, ending).await;
    }
}
