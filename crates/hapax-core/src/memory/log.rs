use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;

use super::{MemoryStore, Tables};
use crate::log::{
    Appended, Attached, Cursor, Epoch, Epochs, JobHead, LogEntry, LogEvent, LogRetention,
    PageRequest, PartitionTail, TailChange, TailPosition,
};
use crate::{Fingerprint, Key, Log, StoreResult, Timestamp, Watch};

/// One job's log, which expires as a whole.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) epochs: Epochs,
    pub(super) last: u64,
    entries: VecDeque<Kept>,
    seen: HashMap<(Arc<str>, u64), (Fingerprint, Cursor)>,
    state: LogEntry,
    closed: bool,
    pub(super) expires_at: Timestamp,
}

#[derive(Clone, Debug)]
struct Kept {
    entry: LogEntry,
    /// The key of this entry in [`PartitionChanges::kept`].
    place: u64,
}

/// The tail of one partition: (job, offset) of each entry that is still kept, by place.
#[derive(Clone, Debug, Default)]
pub(super) struct PartitionChanges {
    kept: BTreeMap<u64, (Key, u64)>,
    pub(super) last: u64,
    /// The highest place whose entry is gone: a reader before it has missed an entry.
    forgotten: u64,
}

impl Job {
    fn begin(first: &LogEntry, now: Timestamp) -> Self {
        Self {
            epochs: Epochs::new(first.at.epoch),
            last: 0,
            entries: VecDeque::new(),
            seen: HashMap::new(),
            state: first.clone(),
            closed: false,
            expires_at: now,
        }
    }

    /// The answer to an event that must not be appended. Duplicates are recognised before closing
    /// is checked, so that a retry gets its first answer also after the job was closed.
    fn answer(&self, event: &LogEvent) -> Option<Appended> {
        match self.seen.get(&(event.stage.clone(), event.seq)) {
            Some((same, at)) if *same == event.fingerprint => Some(Appended::Duplicate(*at)),
            Some(_) => Some(Appended::Conflict),
            None => self.closed.then_some(Appended::Closed),
        }
    }

    fn page(&self, page: &PageRequest) -> Vec<LogEntry> {
        let mut bytes = 0_usize;
        let entries = self.entries.iter().map(|kept| &kept.entry);
        let entries = entries.filter(|entry| entry.at.offset > page.after).take(page.max_entries);
        let fits = |(i, entry): &(usize, &LogEntry)| {
            bytes = bytes.saturating_add(entry.payload.len());
            *i == 0 || bytes <= page.max_bytes
        };
        entries.enumerate().take_while(fits).map(|(_, entry)| entry.clone()).collect()
    }

    fn head(&self, with_state: bool, now: Timestamp) -> JobHead {
        JobHead {
            epochs: self.epochs.clone(),
            first: self.last + 1 - self.entries.len() as u64,
            last: self.last,
            closed: self.closed,
            state: with_state.then(|| self.state.clone()),
            expires_in: self.expires_at.since(now),
        }
    }
}

impl PartitionChanges {
    fn add(&mut self, job: &Key, offset: u64) -> u64 {
        self.last += 1;
        self.kept.insert(self.last, (job.clone(), offset));
        self.last
    }

    fn forget(&mut self, place: u64) {
        self.kept.remove(&place);
        self.forgotten = self.forgotten.max(place);
    }

    fn after(&self, from: &TailPosition, at_most: usize) -> PartitionTail {
        let (after, lost) = match from.as_str() {
            "" => (0, false),
            "$" => (self.last, false),
            place => match place.parse() {
                Ok(place) if place <= self.last => (place, place < self.forgotten),
                // A position from an earlier store, before a restart of this process.
                _ => (0, true),
            },
        };
        let changes: Vec<_> = self
            .kept
            .range(after + 1..)
            .take(at_most)
            .map(|(place, (job, offset))| TailChange {
                job: job.clone(),
                offset: *offset,
                position: TailPosition::new(&place.to_string()),
            })
            .collect();
        let next = match changes.last() {
            Some(last) if changes.len() == at_most => last.position.clone(),
            _ => TailPosition::new(&self.last.max(after).to_string()),
        };
        PartitionTail { changes, next, lost }
    }
}

impl Tables {
    fn append(
        &mut self,
        event: &LogEvent,
        keep: &LogRetention,
        partition: u16,
        now: Timestamp,
    ) -> Appended {
        if self.jobs.get(&event.job).is_some_and(|job| job.expires_at <= now) {
            self.forget(&event.job, partition);
        }
        let at = match self.jobs.get(&event.job) {
            None => Cursor { epoch: self.next_epoch(now), offset: 1 },
            Some(job) => match job.answer(event) {
                Some(answer) => return answer,
                None => Cursor { epoch: job.epochs.last(), offset: job.last + 1 },
            },
        };
        let entry = LogEntry {
            at,
            stage: event.stage.clone(),
            seq: event.seq,
            closes: event.closes,
            payload: event.payload.clone(),
        };
        let changes = self.tails.entry(partition).or_default();
        let job = self.jobs.entry(event.job.clone()).or_insert_with(|| Job::begin(&entry, now));
        job.seen.insert((event.stage.clone(), event.seq), (event.fingerprint.clone(), at));
        job.last = at.offset;
        job.closed = event.closes;
        job.expires_at = now.plus(keep.retention);
        if entry.seq >= job.state.seq {
            job.state = entry.clone();
        }
        job.entries.push_back(Kept { entry, place: changes.add(&event.job, at.offset) });
        while job.entries.len() as u64 > keep.max_entries.max(1) {
            job.entries.pop_front().into_iter().for_each(|trimmed| changes.forget(trimmed.place));
        }
        Appended::Published(at)
    }

    /// Epochs follow the clock, so that a cursor from before a restart of this process belongs to
    /// another epoch.
    pub(super) fn next_epoch(&mut self, now: Timestamp) -> Epoch {
        self.last_epoch = now.0.max(self.last_epoch + 1);
        Epoch(self.last_epoch)
    }

    pub(super) fn forget(&mut self, job: &Key, partition: u16) {
        let Some(gone) = self.jobs.remove(job) else { return };
        let changes = self.tails.entry(partition).or_default();
        gone.entries.iter().for_each(|kept| changes.forget(kept.place));
    }
}

impl MemoryStore {
    pub(super) fn partition(&self, job: &Key) -> u16 {
        job.partition(self.partitions)
    }
}

#[async_trait]
impl Log for MemoryStore {
    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let answers: Vec<_> = {
            let mut tables = self.tables();
            let now = self.clock.now();
            let mut append =
                |event: &LogEvent| tables.append(event, keep, self.partition(&event.job), now);
            events.iter().map(&mut append).collect()
        };
        for (event, answer) in events.iter().zip(&answers) {
            if matches!(answer, Appended::Published(_)) {
                self.wakes.wake(event.job.digest());
            }
        }
        Ok(answers)
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let tables = self.tables();
        let now = self.clock.now();
        let found = tables.jobs.get(job).filter(|job| now < job.expires_at);
        Ok(found
            .map(|job| Attached { head: job.head(page.with_state, now), entries: job.page(page) }))
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>> {
        let mut tables = self.tables();
        let tail = |(partition, from): &(u16, TailPosition)| {
            tables.tails.entry(*partition).or_default().after(from, at_most)
        };
        Ok(from.iter().map(tail).collect())
    }

    fn partitions(&self) -> u16 {
        self.partitions
    }

    fn listen(&self, job: &Key) -> Watch {
        self.wakes.watch(job)
    }
}
