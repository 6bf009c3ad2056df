//! Some changes of one partition, handled one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;

use super::lease::{Going, Place};
use super::{EventDelivery, EventOutcome, Group};
use crate::log::{LogEntry, PartitionTail, TailChange};
use crate::{Fence, Key, StoreError, metric_names};

/// How many entries of a job are fetched at once.
const ENTRIES: usize = 64;
/// How many events may come again after a crash, in time.
const SAVE: Duration = Duration::from_secs(1);

pub(super) struct Page {
    pub(super) group: Arc<Group>,
    pub(super) partition: u16,
    pub(super) fence: Fence,
    pub(super) tail: PartitionTail,
    pub(super) place: Place,
    pub(super) going: watch::Receiver<Going>,
}

/// Why a page ends before its end.
enum Ended {
    /// The partition is to be left.
    Leave,
    /// Another member has it.
    Superseded,
}

/// How far a page came; `None` where the partition is another member's.
pub(super) type Finished = (u16, Option<Place>);

impl Page {
    pub(super) async fn handle(mut self) -> Finished {
        if self.tail.lost {
            counter!(metric_names::BUS_CONSUMED, "result" => "lost").increment(1);
            tracing::warn!(
                partition = self.partition,
                "events were forgotten before they were read"
            );
            self.group.handler.lost(self.partition).await;
        }
        let tail = std::mem::replace(
            &mut self.tail,
            PartitionTail { changes: Vec::new(), next: self.place.position.clone(), lost: false },
        );
        match self.changes(&tail).await {
            Ok(()) => self.place.reached(&tail.next),
            Err(Ended::Leave) => {}
            Err(Ended::Superseded) => return (self.partition, None),
        }
        match self.place.save(&self.group).await {
            Ok(false) => (self.partition, None),
            Ok(true) => (self.partition, Some(self.place)),
            Err(error) => {
                // Saved with the next page; until then a crash makes these events come again.
                metric_names::count_store_error(&error);
                (self.partition, Some(self.place))
            }
        }
    }

    async fn changes(&mut self, tail: &PartitionTail) -> Result<(), Ended> {
        let mut fetched = Fetched::default();
        for change in &tail.changes {
            let mut failures = 0;
            loop {
                self.go_on()?;
                let outcome = self.change(change, &mut fetched, failures + 1).await;
                let Err(wait) = outcome? else { break };
                let (first, most) = self.group.consume.backoff;
                let wait = wait.unwrap_or_else(|| {
                    failures += 1;
                    first.saturating_mul(1 << (failures - 1).min(16)).min(most)
                });
                // Woken where the partition is to be left.
                let mut going = self.going.clone();
                let left = going.wait_for(|going| *going != Going::On);
                let _ = tokio::time::timeout(wait, left).await;
            }
            if self.place.unsaved_for() >= SAVE
                && let Ok(false) = self.place.save(&self.group).await
            {
                return Err(Ended::Superseded);
            }
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), Ended> {
        match *self.going.borrow() {
            Going::On => Ok(()),
            Going::Leave => Err(Ended::Leave),
            Going::Lost => Err(Ended::Superseded),
        }
    }

    /// One change. The inner error says that it has to be tried again, and after how long where the
    /// handler is not to blame.
    async fn change(
        &mut self,
        change: &TailChange,
        fetched: &mut Fetched,
        attempt: u32,
    ) -> Result<Result<(), Option<Duration>>, Ended> {
        let count = |result: &'static str| {
            counter!(metric_names::BUS_CONSUMED, "result" => result).increment(1);
        };
        if change.job.tenant() != &self.group.bus.tenant {
            self.place.reached(&change.position);
            return Ok(Ok(()));
        }
        let entry = match fetched.entry(&self.group, change).await {
            Ok(Some(entry)) => entry,
            Ok(None) => {
                // Trimmed, or the whole job forgotten, since the tail was read.
                count("gone");
                self.group.handler.lost(self.partition).await;
                self.place.reached(&change.position);
                return Ok(Ok(()));
            }
            Err(error) => {
                metric_names::count_store_error(&error);
                return Ok(Err(Some(self.group.consume.poll)));
            }
        };
        let delivery = EventDelivery {
            job: change.job.clone(),
            entry,
            partition: self.partition,
            fence: self.fence,
            attempt,
            progress: self.place.progress(&change.position),
        };
        match self.group.handler.handle(delivery).await {
            Ok(EventOutcome::Done) => self.place.reached(&change.position),
            Ok(EventOutcome::Saved(version)) => self.place.was_saved(&change.position, version),
            Ok(EventOutcome::Superseded) => return Err(Ended::Superseded),
            Err(_) => {
                // The handler's own words may say anything about anybody: they are its to log.
                count("failed");
                tracing::warn!(partition = self.partition, attempt, "a handler failed");
                return Ok(Err(None));
            }
        }
        count("handled");
        Ok(Ok(()))
    }
}

/// Entries that were fetched with an earlier one of their job.
#[derive(Default)]
struct Fetched(HashMap<Key, Vec<LogEntry>>);

impl Fetched {
    async fn entry(
        &mut self,
        group: &Group,
        change: &TailChange,
    ) -> Result<Option<LogEntry>, StoreError> {
        let found = |entries: &Vec<LogEntry>| {
            entries.iter().find(|entry| entry.at.offset == change.offset).cloned()
        };
        if let Some(entry) = self.0.get(&change.job).and_then(found) {
            return Ok(Some(entry));
        }
        let after = change.offset.saturating_sub(1);
        let attached = group.bus.store().attach(&change.job, after, ENTRIES).await?;
        let entries = attached.map(|attached| attached.entries).unwrap_or_default();
        let entry = found(&entries);
        self.0.insert(change.job.clone(), entries);
        Ok(entry)
    }
}
