//! One page of changes of a partition, handled one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::sync::watch;

use super::partition::{LeaseState, PartitionProgress};
use super::{EventDelivery, EventOutcome, Group};
use crate::log::{Attached, Epochs, LogEntry, PageRequest, PartitionTail, TailChange};
use crate::{Fence, Key, StoreResult, metric_names};

/// How many entries of a job one store call reads.
const MAX_ENTRIES: usize = 64;
/// How many bytes of a job one store call reads; at least one entry.
const MAX_BYTES: usize = 256 * 1024;
/// How often progress is saved within a page: a crash repeats the events of this long.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct PartitionPage {
    pub(super) group: Arc<Group>,
    pub(super) partition: u16,
    pub(super) fence: Fence,
    pub(super) progress: PartitionProgress,
    pub(super) lease: watch::Receiver<LeaseState>,
}

/// Why a page ends early.
enum EarlyEnd {
    /// The partition is to be released.
    Leaving,
    /// Another member owns the partition.
    Superseded,
}

/// The partition and its progress; `None` where another member owns the partition.
pub(super) type FinishedPage = (u16, Option<PartitionProgress>);

impl PartitionPage {
    pub(super) async fn handle(mut self, tail: PartitionTail) -> FinishedPage {
        if tail.lost {
            counter!(metric_names::BUS_CONSUMED, "result" => "lost").increment(1);
            tracing::warn!(
                partition = self.partition,
                "events were forgotten before they were read"
            );
            self.group.handler.lost(self.partition).await;
        }
        match self.handle_changes(&tail).await {
            Ok(()) => self.progress.advance(&tail.next),
            Err(EarlyEnd::Leaving) => {}
            Err(EarlyEnd::Superseded) => return (self.partition, None),
        }
        match self.progress.save(&self.group).await {
            Ok(false) => (self.partition, None),
            Ok(true) => (self.partition, Some(self.progress)),
            Err(error) => {
                // Saved with the next page; a crash before that repeats these events.
                metric_names::count_store_error(&error);
                (self.partition, Some(self.progress))
            }
        }
    }

    async fn handle_changes(&mut self, tail: &PartitionTail) -> Result<(), EarlyEnd> {
        let mut fetched = FetchedEntries::default();
        for change in &tail.changes {
            let mut failures = 0;
            loop {
                self.check_lease()?;
                let outcome = self.handle_change(change, &mut fetched, failures + 1).await;
                let Err(wait) = outcome? else { break };
                let (first, max) = self.group.config.backoff;
                let wait = wait.unwrap_or_else(|| {
                    failures += 1;
                    first.saturating_mul(1 << (failures - 1).min(16)).min(max)
                });
                // End the pause early where the partition is to be released.
                let mut lease = self.lease.clone();
                let released = lease.wait_for(|state| *state != LeaseState::Held);
                let _ = tokio::time::timeout(wait, released).await;
            }
            if self.progress.unsaved_for() >= SAVE_INTERVAL
                && let Ok(false) = self.progress.save(&self.group).await
            {
                return Err(EarlyEnd::Superseded);
            }
        }
        Ok(())
    }

    fn check_lease(&self) -> Result<(), EarlyEnd> {
        match *self.lease.borrow() {
            LeaseState::Held => Ok(()),
            LeaseState::Leaving => Err(EarlyEnd::Leaving),
            LeaseState::Lost => Err(EarlyEnd::Superseded),
        }
    }

    /// Handles one change. The inner error asks for a retry: after this pause where the store failed,
    /// with backoff (`None`) where the handler did.
    async fn handle_change(
        &mut self,
        change: &TailChange,
        fetched: &mut FetchedEntries,
        attempt: u32,
    ) -> Result<Result<(), Option<Duration>>, EarlyEnd> {
        let count = |result: &'static str| {
            counter!(metric_names::BUS_CONSUMED, "result" => result).increment(1);
        };
        let is_foreign = change.job.tenant() != &self.group.tenant;
        if is_foreign || change.job.is_operators_job() {
            self.progress.advance(&change.position);
            return Ok(Ok(()));
        }
        let entry = match fetched.entry(&self.group, change).await {
            Ok(Some(FetchedEntry { entry, after_loss })) => {
                if after_loss && attempt == 1 {
                    count("lost");
                    tracing::warn!(partition = self.partition, "a failover may have lost events");
                    self.group.handler.lost(self.partition).await;
                }
                entry
            }
            Ok(None) => {
                // Trimmed or expired since the tail was read.
                count("gone");
                self.group.handler.lost(self.partition).await;
                self.progress.advance(&change.position);
                return Ok(Ok(()));
            }
            Err(error) => {
                metric_names::count_store_error(&error);
                return Ok(Err(Some(self.group.config.poll_interval)));
            }
        };
        let delivery = EventDelivery {
            job: change.job.clone(),
            entry,
            partition: self.partition,
            fence: self.fence,
            attempt,
            progress: self.progress.record_for(&change.position),
        };
        match self.group.handler.handle(delivery).await {
            Ok(EventOutcome::Done) => self.progress.advance(&change.position),
            Ok(EventOutcome::Saved(version)) => self.progress.mark_saved(&change.position, version),
            Ok(EventOutcome::Superseded) => return Err(EarlyEnd::Superseded),
            Err(_) => {
                // The handler's error may contain personal data, so it is not logged here.
                count("failed");
                tracing::warn!(partition = self.partition, attempt, "a handler failed");
                return Ok(Err(None));
            }
        }
        count("handled");
        Ok(Ok(()))
    }
}

/// Entries that were read together with an earlier entry of their job.
#[derive(Default)]
struct FetchedEntries(HashMap<Key, (Epochs, Vec<LogEntry>)>);

struct FetchedEntry {
    entry: LogEntry,
    /// Whether acknowledged entries of the job may have been lost right before this one.
    after_loss: bool,
}

impl FetchedEntries {
    async fn entry(
        &mut self,
        group: &Group,
        change: &TailChange,
    ) -> StoreResult<Option<FetchedEntry>> {
        if let Some(entry) = self.found(change) {
            return Ok(Some(entry));
        }
        let after = change.offset.saturating_sub(1);
        let request = PageRequest::new(after, MAX_ENTRIES).bytes(MAX_BYTES);
        let attached = group.store.attach(&change.job, &request).await?;
        let Some(Attached { head, entries }) = attached else { return Ok(None) };
        self.0.insert(change.job.clone(), (head.epochs, entries));
        Ok(self.found(change))
    }

    fn found(&self, change: &TailChange) -> Option<FetchedEntry> {
        let (epochs, entries) = self.0.get(&change.job)?;
        let entry = entries.iter().find(|entry| entry.at.offset == change.offset)?.clone();
        Some(FetchedEntry { entry, after_loss: epochs.may_have_lost_before(change.offset) })
    }
}
