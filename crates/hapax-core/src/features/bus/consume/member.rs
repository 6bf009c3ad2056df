//! One member: which partitions it has, and what happens in them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use metrics::gauge;
use tokio::sync::{Semaphore, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep_until};

use super::Group;
use super::lease::{Going, Lease, Place};
use super::page::{Finished, Page};
use super::roster::Roster;
use crate::{StoreError, metric_names};

/// How many changes of a partition are read at once.
const CHANGES: usize = 128;
/// How many partitions are claimed at once.
const CLAIMS: usize = 16;

pub(super) struct Member {
    group: Arc<Group>,
    roster: Roster,
    held: BTreeMap<u16, Held>,
    pages: JoinSet<Finished>,
    /// Which page is whose, for those that panic.
    whose: HashMap<Id, u16>,
    places: Arc<Semaphore>,
    beat_at: Instant,
    poll_at: Instant,
}

struct Held {
    lease: Lease,
    /// `None` while it is being handled, or has to be read again.
    place: Option<Place>,
    busy: bool,
}

impl Member {
    pub(super) fn new(group: Arc<Group>) -> Self {
        let places = Arc::new(Semaphore::new(group.consume.at_once.max(1)));
        Self {
            roster: Roster::new(&group),
            held: BTreeMap::new(),
            pages: JoinSet::new(),
            whose: HashMap::new(),
            places,
            beat_at: Instant::now(),
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
                () = sleep_until(self.beat_at) => self.beat().await,
                Some(done) = self.pages.join_next_with_id() => self.finished(done).await,
                () = sleep_until(self.poll_at) => self.poll().await,
            }
        }
    }

    /// A sign of life, and our fair share.
    async fn beat(&mut self) {
        self.beat_at = Instant::now() + self.group.consume.lease / 3;
        let balanced = async {
            let members = self.roster.beat().await?;
            let partitions = usize::from(self.group.bus.store().partitions());
            self.balance(partitions, partitions.div_ceil(members.max(1))).await
        };
        if let Err(error) = balanced.await {
            metric_names::count_store_error(&error);
        }
        let group = self.group.name.to_string();
        gauge!(metric_names::BUS_CONSUMER_PARTITIONS, "group" => group).set(self.held.len() as f64);
    }

    async fn balance(&mut self, partitions: usize, share: usize) -> Result<(), StoreError> {
        let lost: Vec<_> = self.of(|held| held.lease.is(Going::Lost) && !held.busy);
        lost.iter().for_each(|partition| drop(self.held.remove(partition)));
        let staying = self.of(|held| held.lease.is(Going::On));
        for partition in staying.iter().skip(share) {
            self.give_up(*partition).await;
        }
        let mut missing = share.saturating_sub(staying.len());
        // Everybody begins elsewhere, so that few meet.
        let mix = |hash: usize, byte| (hash * 31 + usize::from(byte)) % partitions.max(1);
        let start = self.roster.me.bytes().fold(0, mix);
        let free = (0..partitions).map(|nth| ((start + nth) % partitions) as u16);
        let free: Vec<_> = free.filter(|partition| !self.held.contains_key(partition)).collect();
        for some in free.chunks(CLAIMS) {
            let some = &some[..missing.min(some.len())];
            if some.is_empty() {
                break;
            }
            missing -= self.take(some).await?;
        }
        Ok(())
    }

    fn of(&self, which: impl Fn(&Held) -> bool) -> Vec<u16> {
        self.held.iter().filter(|(_, held)| which(held)).map(|(partition, _)| *partition).collect()
    }

    /// Takes those that are free; how many they were.
    async fn take(&mut self, partitions: &[u16]) -> Result<usize, StoreError> {
        let mut claims = JoinSet::new();
        for partition in partitions.iter().copied() {
            let group = self.group.clone();
            claims.spawn(async move {
                let Some(lease) = Lease::take(&group, partition).await? else { return Ok(None) };
                let place = Place::load(&group, partition).await?;
                Ok::<_, StoreError>(Some((
                    partition,
                    Held { lease, place: Some(place), busy: false },
                )))
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

    /// Asks what happened in every partition that is idle, in one question.
    async fn poll(&mut self) {
        self.poll_at = Instant::now() + self.group.consume.poll;
        if let Err(error) = self.read().await {
            metric_names::count_store_error(&error);
        }
    }

    async fn read(&mut self) -> Result<(), StoreError> {
        for (partition, held) in &mut self.held {
            if held.place.is_none() && !held.busy {
                held.place = Some(Place::load(&self.group, *partition).await?);
            }
        }
        let idle = |held: &Held| !held.busy && held.lease.is(Going::On);
        let from: Vec<_> = self
            .of(idle)
            .into_iter()
            .filter_map(|one| Some((one, self.held.get(&one)?.place.as_ref()?.position.clone())))
            .collect();
        if from.is_empty() {
            return Ok(());
        }
        let tails = self.group.bus.store().tail(&from, CHANGES).await?;
        for ((partition, position), tail) in from.into_iter().zip(tails) {
            if !tail.changes.is_empty() || tail.lost || tail.next != position {
                self.begin(partition, tail);
            }
        }
        Ok(())
    }

    fn begin(&mut self, partition: u16, tail: crate::log::PartitionTail) {
        let Some(held) = self.held.get_mut(&partition) else { return };
        let Some(place) = held.place.take() else { return };
        held.busy = true;
        let page = Page {
            group: self.group.clone(),
            partition,
            fence: held.lease.fence(),
            tail,
            place,
            going: held.lease.going.subscribe(),
        };
        let places = self.places.clone();
        let task = self.pages.spawn(async move {
            let _place = places.acquire().await;
            page.handle().await
        });
        self.whose.insert(task.id(), partition);
    }

    async fn finished(&mut self, done: Result<(Id, Finished), tokio::task::JoinError>) {
        let (id, finished) = match done {
            Ok((id, finished)) => (id, Some(finished)),
            // A handler that panics is one that failed; where the group is, the store knows.
            Err(error) => (error.id(), None),
        };
        let Some(partition) = self.whose.remove(&id) else { return };
        let Some(held) = self.held.get_mut(&partition) else { return };
        held.busy = false;
        match finished {
            Some((_, Some(place))) => {
                held.place = Some(place);
                self.poll_at = Instant::now();
            }
            Some((_, None)) => drop(self.held.remove(&partition)),
            None => tracing::error!(partition, "a handler panicked; the event comes again"),
        }
        if self.held.get(&partition).is_some_and(|held| !held.lease.is(Going::On)) {
            self.give_up(partition).await;
        }
    }

    /// Gives a partition to others: at once where it is idle, else when its event is handled.
    async fn give_up(&mut self, partition: u16) {
        let Some(held) = self.held.get(&partition) else { return };
        held.lease.leave();
        if held.busy {
            return;
        }
        let Some(Held { lease, place, .. }) = self.held.remove(&partition) else { return };
        if let Some(mut place) = place {
            // What is not saved comes again at its next owner.
            let _ = place.save(&self.group).await;
        }
        lease.give_back().await;
    }

    async fn leave(mut self) {
        let limit = self.group.consume.lease;
        let ending = async {
            for partition in self.of(|_| true) {
                self.give_up(partition).await;
            }
            while let Some(done) = self.pages.join_next_with_id().await {
                self.finished(done).await;
            }
            let _ = self.roster.leave().await;
        };
        // Whoever takes longer than its lease is taken over anyway.
        let _ = tokio::time::timeout(limit, ending).await;
    }
}
