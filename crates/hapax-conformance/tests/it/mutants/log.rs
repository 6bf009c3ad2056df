//! Planted bugs of logs.

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::log::{
    Appended, Attached, Cursor, Epoch, Epochs, LogEvent, LogRetention, PartitionTail, TailPosition,
};
use hapax_core::{Key, Log, StoreError, Watch};

use crate::mutants::{Bug, Mutant};

/// The retention that each job's last duplicate was appended with.
pub(crate) type Duplicates = Mutex<HashMap<Key, Duration>>;

impl Mutant {
    fn job(&self, job: &Key) -> Key {
        if self.bug == Bug::OneDomain {
            return Key::job(job.tenant(), "every", job.name()).unwrap();
        }
        job.clone()
    }

    fn shown(&self, mut at: Cursor) -> Cursor {
        if self.bug == Bug::OffsetHole && at.offset > 1 {
            at.offset += 1;
        }
        if self.bug == Bug::EpochStays {
            at.epoch = Epoch(1);
        }
        at
    }

    async fn append_one(
        &self,
        event: &LogEvent,
        keep: &LogRetention,
    ) -> Result<Appended, StoreError> {
        let event = LogEvent { job: self.job(&event.job), ..event.clone() };
        let job = self.store.attach(&event.job, 0, 10_000).await?;
        if let Some(Attached { head, .. }) = &job {
            if self.bug == Bug::ClosedBeforeDuplicate && head.closed {
                return Ok(Appended::Closed);
            }
            if self.bug == Bug::LateEventDropped && event.seq < head.state.seq {
                return Ok(Appended::Published(head.end()));
            }
        }
        let answer = self.store.append(from_ref(&event), keep).await?[0];
        Ok(match (answer, job) {
            (Appended::Published(at), _) => Appended::Published(self.shown(at)),
            (Appended::Duplicate(at), _) => {
                self.duplicates.lock().unwrap().insert(event.job, keep.retention);
                Appended::Duplicate(self.shown(at))
            }
            (Appended::Conflict, Some(job)) if self.bug == Bug::ConflictIgnored => {
                let same =
                    |e: &&hapax_core::log::LogEntry| e.stage == event.stage && e.seq == event.seq;
                let known = job.entries.iter().find(same);
                known.map_or(Appended::Conflict, |known| Appended::Duplicate(known.at))
            }
            (answer, _) => answer,
        })
    }
}

#[async_trait]
impl Log for Mutant {
    async fn append(
        &self,
        events: &[LogEvent],
        keep: &LogRetention,
    ) -> Result<Vec<Appended>, StoreError> {
        let mut answers = Vec::new();
        for event in events {
            answers.push(self.append_one(event, keep).await?);
        }
        Ok(answers)
    }

    async fn attach(
        &self,
        job: &Key,
        after: u64,
        at_most: usize,
    ) -> Result<Option<Attached>, StoreError> {
        let job = &self.job(job);
        let Some(whole) = self.store.attach(job, 0, 10_000).await? else { return Ok(None) };
        let mut attached = self.store.attach(job, after, at_most).await?.unwrap();
        let head = &mut attached.head;
        let renewed = self.duplicates.lock().unwrap().get(job).copied();
        match self.bug {
            Bug::StateGoesBack => head.state = whole.entries.last().unwrap().clone(),
            Bug::FirstOfEqualsIsState => {
                let of_equals = whole.entries.into_iter().find(|e| e.seq == head.state.seq);
                head.state = of_equals.unwrap_or(head.state.clone());
            }
            Bug::StateIsTrimmed => {
                head.state = whole.entries.into_iter().max_by_key(|e| e.seq).unwrap();
            }
            Bug::DuplicateRenewsLifetime => head.expires_in = renewed.unwrap_or(head.expires_in),
            Bug::EpochStays => head.epochs = Epochs::new(Epoch(1)),
            Bug::OffsetHole => head.last = self.shown(head.end()).offset,
            _ => {}
        }
        for entry in attached.entries.iter_mut().chain([&mut attached.head.state]) {
            entry.at = self.shown(entry.at);
        }
        Ok(Some(attached))
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> Result<Vec<PartitionTail>, StoreError> {
        let mut tails = self.store.tail(from, at_most).await?;
        for tail in &mut tails {
            match self.bug {
                Bug::TailSkips if tail.changes.len() > 1 => drop(tail.changes.remove(0)),
                Bug::TailRepeats if tail.changes.len() > 1 => {
                    tail.next = tail.changes[tail.changes.len() - 2].position.clone();
                }
                Bug::LosesSilently => tail.lost = false,
                _ => {}
            }
        }
        Ok(tails)
    }

    fn partitions(&self) -> u16 {
        self.store.partitions()
    }

    fn listen(&self, job: &Key) -> Watch {
        if self.bug == Bug::WakesNoListener { Watch::never() } else { self.store.listen(job) }
    }
}
