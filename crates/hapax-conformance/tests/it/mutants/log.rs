//! Planted bugs of logs.

use std::collections::HashMap;
use std::slice::from_ref;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::StoreWrapper;
use hapax_core::log::{
    Appended, Attached, Cursor, Epoch, Epochs, FoundSeq, JobHead, LogEntry, LogEvent, LogRetention,
    PageRequest, PartitionTail, SeqSearch, TailPosition,
};
use hapax_core::memory::MemoryStore;
use hapax_core::{Key, Log, Store, StoreResult, Watch};

use super::bugs;

bugs! {
    /// An offset is left out.
    OffsetHole => "offsets_start_at_one_without_gaps",
    /// A duplicate renews the retention.
    DuplicateRenewsLifetime => "refused_event_does_not_change_the_retention",
    /// The state is the last entry.
    StateGoesBack => "state_follows_the_highest_seq",
    /// Of two entries with the highest seq the first stays the state.
    FirstOfEqualsIsState => "state_is_the_later_of_two_events_with_equal_seq",
    /// The state is forgotten with its entry.
    StateIsTrimmed => "trimming_keeps_dedup_and_state",
    /// An event with a lower seq than the state is acknowledged and dropped.
    LateEventDropped => "late_and_sparse_seqs_are_appended",
    /// A duplicate is refused after the job was closed.
    ClosedBeforeDuplicate => "duplicates_and_conflicts_are_known_after_closing",
    /// The same identity with another content is taken for a duplicate.
    ConflictIgnored => "event_with_other_content_is_a_conflict",
    /// Domains share their jobs.
    OneDomain => "jobs_domains_and_tenants_are_separate",
    /// A log that starts again has the previous epoch.
    EpochStays => "expired_job_starts_again_with_a_greater_epoch",
    /// A page has entries beyond its limit of bytes.
    PageIgnoresBytes => "page_ends_before_its_limit_of_bytes",
    /// An entry that is larger than a page is not returned, and its reader waits for ever.
    LargeEntryBlocksPage => "page_has_an_entry_larger_than_its_limit",
    /// The state is read although nobody asked for it.
    StateUnasked => "state_is_left_out_unless_asked_for",
    /// Entries have an epoch that the head does not know.
    EntryEpochUnknown => "entries_have_the_epoch_of_their_offset",
    /// Of several entries with the seq the last one is found.
    LastSeqFound => "find_seq_finds_the_first_with_the_highest_seq",
    /// Trimmed entries are found by seq.
    TrimmedSeqFound => "find_seq_leaves_out_trimmed_entries",
    /// The tail skips entries.
    TailSkips => "tail_shows_each_entry_once_in_offset_order",
    /// The next page repeats the last entry of the previous one.
    TailRepeats => "tail_continues_from_every_position",
    /// Trimmed entries are not reported as lost.
    LosesSilently => "tail_reports_trimmed_entries_as_lost",
    /// Entries after a loss have the epoch of the lost ones.
    LossKeepsEpoch => "entries_after_a_loss_have_a_greater_epoch",
    /// A cursor of a lost entry is taken for one of its successor.
    LostCursorHeld => "cursors_of_lost_entries_are_not_held",
    /// Only readers that saw lost entries are told of the loss.
    LossUnmarked => "cursor_right_before_a_loss_is_not_held",
    /// A lost event is still a duplicate.
    LostEventIsDuplicate => "lost_event_is_new_and_kept_event_is_a_duplicate",
    /// The tail's positions go on as if nothing had been lost.
    TailStaysBehindLoss => "tail_shows_entries_after_a_loss_to_whoever_read_lost_ones",
    /// Wakes no listener.
    WakesNoListener => "listener_is_woken_at_an_append",
}

/// More than any law appends, and the state.
const ALL: PageRequest =
    PageRequest { after: 0, max_entries: 10_000, max_bytes: usize::MAX, with_state: true };

fn state_of(head: &JobHead) -> &LogEntry {
    head.state.as_ref().unwrap()
}

pub(crate) struct LogMutant {
    bug: Bug,
    store: MemoryStore,
    /// The retention that each job's last duplicate was appended with.
    duplicates: Mutex<HashMap<Key, Duration>>,
    /// The cursor of every event that was ever appended.
    published: Mutex<HashMap<(Key, u64), Cursor>>,
    /// The highest offset of each job that the tail has shown.
    tail_shown: Mutex<HashMap<Key, u64>>,
}

impl LogMutant {
    pub(crate) fn new(bug: Bug, store: MemoryStore) -> Self {
        let (published, tail_shown) = (Mutex::default(), Mutex::default());
        Self { bug, store, duplicates: Mutex::default(), published, tail_shown }
    }

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

    async fn append_one(&self, event: &LogEvent, keep: &LogRetention) -> StoreResult<Appended> {
        let event = LogEvent { job: self.job(&event.job), ..event.clone() };
        let job = self.store.attach(&event.job, &ALL).await?;
        if let Some(Attached { head, .. }) = &job {
            if self.bug == Bug::ClosedBeforeDuplicate && head.closed {
                return Ok(Appended::Closed);
            }
            if self.bug == Bug::LateEventDropped && event.seq < state_of(head).seq {
                return Ok(Appended::Published(head.end()));
            }
        }
        let mut answer = self.store.append(from_ref(&event), keep).await?[0];
        if let Appended::Published(at) = &mut answer {
            if let (Bug::LossKeepsEpoch, Some(Attached { head, .. })) = (self.bug, &job) {
                at.epoch = head.epochs.at(1);
            }
            let identity = (event.job.clone(), event.seq);
            let before = self.published.lock().unwrap().insert(identity, *at);
            if let Some(before) = before.filter(|_| self.bug == Bug::LostEventIsDuplicate) {
                return Ok(Appended::Duplicate(before));
            }
        }
        Ok(match (answer, job) {
            (Appended::Published(at), _) => Appended::Published(self.shown(at)),
            (Appended::Duplicate(at), _) => {
                self.duplicates.lock().unwrap().insert(event.job, keep.retention);
                Appended::Duplicate(self.shown(at))
            }
            (Appended::Conflict, Some(job)) if self.bug == Bug::ConflictIgnored => {
                let same = |e: &&LogEntry| e.stage == event.stage && e.seq == event.seq;
                let known = job.entries.iter().find(same);
                known.map_or(Appended::Conflict, |known| Appended::Duplicate(known.at))
            }
            (answer, _) => answer,
        })
    }
}

#[async_trait]
impl StoreWrapper for LogMutant {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn append(&self, events: &[LogEvent], keep: &LogRetention) -> StoreResult<Vec<Appended>> {
        let mut answers = Vec::new();
        for event in events {
            answers.push(self.append_one(event, keep).await?);
        }
        Ok(answers)
    }

    async fn attach(&self, job: &Key, page: &PageRequest) -> StoreResult<Option<Attached>> {
        let job = &self.job(job);
        let Some(whole) = self.store.attach(job, &ALL).await? else { return Ok(None) };
        let mut asked = *page;
        match self.bug {
            Bug::PageIgnoresBytes => asked.max_bytes = usize::MAX,
            Bug::StateUnasked => asked.with_state = true,
            _ => {}
        }
        let mut attached = self.store.attach(job, &asked).await?.unwrap();
        if self.bug == Bug::LargeEntryBlocksPage {
            attached.entries.retain(|entry| entry.payload.len() <= page.max_bytes);
        }
        if self.bug == Bug::EntryEpochUnknown {
            attached.entries.iter_mut().for_each(|entry| entry.at.epoch = Epoch(0));
        }
        let head = &mut attached.head;
        let renewed = self.duplicates.lock().unwrap().get(job).copied();
        match self.bug {
            Bug::StateGoesBack => head.state = whole.entries.last().cloned(),
            Bug::FirstOfEqualsIsState => {
                let of_equals = whole.entries.iter().find(|e| e.seq == state_of(&whole.head).seq);
                head.state = of_equals.or(whole.head.state.as_ref()).cloned();
            }
            Bug::StateIsTrimmed => {
                head.state = whole.entries.into_iter().max_by_key(|e| e.seq);
            }
            Bug::DuplicateRenewsLifetime => head.expires_in = renewed.unwrap_or(head.expires_in),
            Bug::EpochStays => head.epochs = Epochs::new(Epoch(1)),
            Bug::LossKeepsEpoch | Bug::LostCursorHeld => {
                let first = head.epochs.at(1);
                head.epochs = Epochs::new(first);
                if self.bug == Bug::LossKeepsEpoch {
                    attached.entries.iter_mut().for_each(|entry| entry.at.epoch = first);
                }
            }
            Bug::LossUnmarked => {
                head.epochs = head.epochs.to_string().replace('!', "@").parse().unwrap();
            }
            Bug::OffsetHole => head.last = self.shown(head.end()).offset,
            _ => {}
        }
        for entry in attached.entries.iter_mut().chain(attached.head.state.as_mut()) {
            entry.at = self.shown(entry.at);
        }
        Ok(Some(attached))
    }

    async fn find_seq(&self, job: &Key, seq: u64) -> StoreResult<Option<SeqSearch>> {
        let found = self.store.find_seq(job, seq).await?;
        let Some(whole) = self.store.attach(job, &ALL).await? else { return Ok(found) };
        let last = whole.entries.iter().filter(|entry| entry.seq <= seq).max_by_key(|e| e.seq);
        Ok(match self.bug {
            Bug::LastSeqFound => found.map(|search| SeqSearch {
                found: last.map(|entry| FoundSeq { seq: entry.seq, at: entry.at }),
                ..search
            }),
            Bug::TrimmedSeqFound => found.map(|search| {
                let at = Cursor { offset: 1, ..whole.head.end() };
                SeqSearch { found: Some(FoundSeq { seq, at }), ..search }
            }),
            _ => found,
        })
    }

    async fn tail(
        &self,
        from: &[(u16, TailPosition)],
        at_most: usize,
    ) -> StoreResult<Vec<PartitionTail>> {
        let mut tails = self.store.tail(from, at_most).await?;
        for tail in &mut tails {
            if self.bug == Bug::TailStaysBehindLoss {
                let mut shown = self.tail_shown.lock().unwrap();
                tail.changes.retain(|change| {
                    let last = shown.insert(change.job.clone(), change.offset);
                    last.is_none_or(|last| last < change.offset)
                });
            }
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

    fn listen(&self, job: &Key) -> Watch {
        if self.bug == Bug::WakesNoListener { Watch::never() } else { self.store.listen(job) }
    }
}
