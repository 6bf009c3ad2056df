//! Compares logs with their model, which keeps all events and derives everything else from them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use hapax_core::Key;
use hapax_core::log::{
    Appended, Cursor, Epoch, LogEntry, LogEvent, LogRetention, PageRequest, TailPosition,
};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{HistoryTimes, Model, expect, expect_equal, failed};
use crate::context::LawContext;
use crate::log::{entry, event_with_payload};

const JOBS: usize = 3;

#[derive(Clone, Debug)]
pub(super) enum LogHistoryStep {
    Append { node: usize, events: Vec<EventSpec>, entries: u64, brief: bool },
    Attach { node: usize, job: usize, after: u64, at_most: usize },
    Tail { node: usize, at_most: usize },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct EventSpec {
    job: usize,
    stage: u8,
    seq: u64,
    content: u8,
    closes: bool,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<LogHistoryStep>> {
    let content = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
    let event = (0..JOBS, 0..2_u8, 0..6_u64, content, prop::bool::weighted(0.05)).prop_map(
        |(job, stage, seq, content, closes)| EventSpec { job, stage, seq, content, closes },
    );
    let entries = prop_oneof![1 => Just(1_u64), 1 => Just(2), 4 => Just(100)];
    let append =
        (0..2_usize, prop::collection::vec(event, 1..5), entries, prop::bool::weighted(0.1));
    let at_most = prop_oneof![Just(0_usize), Just(1), Just(3), Just(100)];
    let one = prop_oneof![
        5 => append.prop_map(|(node, events, entries, brief)| LogHistoryStep::Append {
            node, events, entries, brief
        }),
        2 => (0..2_usize, 0..JOBS, 0..12_u64, at_most)
            .prop_map(|(node, job, after, at_most)| LogHistoryStep::Attach { node, job, after, at_most }),
        2 => (0..2_usize, 1..4_usize).prop_map(|(node, at_most)| LogHistoryStep::Tail { node, at_most }),
    ];
    prop::collection::vec(one, 1..24)
}

/// One lifetime of a job: all its events, trimmed or not.
struct ModelJob {
    epoch: Epoch,
    events: Vec<LogEvent>,
    trimmed: usize,
    brief: bool,
}

impl ModelJob {
    fn at(&self, index: usize) -> Cursor {
        Cursor { epoch: self.epoch, offset: index as u64 + 1 }
    }

    fn entry(&self, index: usize) -> LogEntry {
        entry(&self.events[index], self.at(index))
    }

    fn state(&self) -> LogEntry {
        let highest = (0..self.events.len()).max_by_key(|i| self.events[*i].seq);
        self.entry(highest.expect("a log begins with an event"))
    }

    fn closed(&self) -> bool {
        self.events.iter().any(|event| event.closes)
    }

    fn kept(&self) -> Range<usize> {
        self.trimmed..self.events.len()
    }

    fn knows(&self, event: &LogEvent) -> Option<Appended> {
        let same = |known: &LogEvent| known.stage == event.stage && known.seq == event.seq;
        match self.events.iter().position(same) {
            Some(i) if self.events[i].fingerprint == event.fingerprint => {
                Some(Appended::Duplicate(self.at(i)))
            }
            Some(_) => Some(Appended::Conflict),
            None => self.closed().then_some(Appended::Closed),
        }
    }
}

pub(super) struct LogModel {
    times: HistoryTimes,
    nodes: [LawContext; 2],
    keys: Vec<Key>,
    jobs: Vec<Option<ModelJob>>,
    /// The last epoch of each job; the next one must be greater.
    epochs: Vec<Option<Epoch>>,
    /// The offsets that the tail has not shown yet, by job.
    unread: HashMap<Key, Vec<u64>>,
    positions: Vec<(u16, TailPosition)>,
}

impl Model for LogModel {
    type Step = LogHistoryStep;

    async fn new(s: LawContext, times: HistoryTimes) -> Result<Self, TestCaseError> {
        let keys: Vec<_> = (0..JOBS).map(|i| s.job(&format!("k{i}"))).collect();
        let partitions: BTreeSet<_> =
            keys.iter().map(|job| job.partition(s.store.partitions())).collect();
        let ends: Vec<_> = partitions.iter().map(|p| (*p, TailPosition::end())).collect();
        let tails = s.store.tail(&ends, 1).await.map_err(failed)?;
        let positions = partitions.into_iter().zip(tails.into_iter().map(|tail| tail.next));
        Ok(Self {
            times,
            jobs: (0..JOBS).map(|_| None).collect(),
            epochs: vec![None; JOBS],
            unread: HashMap::new(),
            positions: positions.collect(),
            keys,
            nodes: [s.clone(), s.reopened().await],
        })
    }

    async fn step(&mut self, step: LogHistoryStep) -> Result<(), TestCaseError> {
        match step {
            LogHistoryStep::Append { node, events, entries, brief } => {
                let retention = self.times.time(brief);
                let keep = LogRetention { retention, max_entries: entries };
                self.append(node, events, &keep, brief).await
            }
            LogHistoryStep::Attach { node, job, after, at_most } => {
                self.attach(node, job, after, at_most).await
            }
            LogHistoryStep::Tail { node, at_most } => self.tail(node, at_most).await,
        }
    }

    fn expire_brief(&mut self) -> bool {
        let brief = self.jobs.iter_mut().filter(|job| job.as_ref().is_some_and(|job| job.brief));
        brief.map(|job| *job = None).count() > 0
    }

    async fn finish(&mut self) -> Result<(), TestCaseError> {
        self.tail(0, 2).await
    }
}

impl LogModel {
    async fn append(
        &mut self,
        node: usize,
        events: Vec<EventSpec>,
        keep: &LogRetention,
        brief: bool,
    ) -> Result<(), TestCaseError> {
        let made: Vec<_> = events
            .iter()
            .map(|spec| {
                let text = format!("{}/{}/{}", spec.stage, spec.seq, spec.content);
                let stage = format!("stage{}", spec.stage);
                let event = event_with_payload(&self.keys[spec.job], &stage, spec.seq, text.into());
                LogEvent { closes: spec.closes, ..event }
            })
            .collect();
        let answers = self.nodes[node].store.append(&made, keep).await.map_err(failed)?;
        expect_equal!(answers.len(), made.len());
        for ((spec, event), answer) in events.iter().zip(made).zip(answers) {
            self.follow(spec.job, event, answer, keep, brief)?;
        }
        Ok(())
    }

    fn follow(
        &mut self,
        job: usize,
        event: LogEvent,
        answer: Appended,
        keep: &LogRetention,
        brief: bool,
    ) -> Result<(), TestCaseError> {
        if let Some(known) = self.jobs[job].as_ref().and_then(|job| job.knows(&event)) {
            expect_equal!(answer, known);
            return Ok(());
        }
        let Appended::Published(at) = answer else {
            return Err(TestCaseError::fail(format!("new, but {answer:?}")));
        };
        if self.jobs[job].is_none() {
            expect(Some(at.epoch) > self.epochs[job], || "an epoch came again".into())?;
            self.epochs[job] = Some(at.epoch);
        }
        let job_model = self.jobs[job].get_or_insert_with(|| ModelJob {
            epoch: at.epoch,
            events: Vec::new(),
            trimmed: 0,
            brief,
        });
        self.unread.entry(event.job.clone()).or_default().push(job_model.events.len() as u64 + 1);
        job_model.events.push(event);
        job_model.brief = brief;
        let entries = usize::try_from(keep.max_entries).unwrap_or(usize::MAX);
        job_model.trimmed = job_model.trimmed.max(job_model.events.len().saturating_sub(entries));
        expect_equal!(at, job_model.at(job_model.events.len() - 1));
        Ok(())
    }

    async fn attach(
        &self,
        node: usize,
        job: usize,
        after: u64,
        at_most: usize,
    ) -> Result<(), TestCaseError> {
        let store = &self.nodes[node].store;
        let page = PageRequest::new(after, at_most).with_state();
        let attached = store.attach(&self.keys[job], &page).await.map_err(failed)?;
        let (Some(attached), Some(job_model)) = (&attached, &self.jobs[job]) else {
            expect_equal!(attached.is_some(), self.jobs[job].is_some());
            return Ok(());
        };
        let head = &attached.head;
        expect_equal!(head.end(), job_model.at(job_model.events.len() - 1));
        expect_equal!(head.first, job_model.trimmed as u64 + 1);
        expect_equal!(head.closed, job_model.closed());
        expect_equal!(head.state, Some(job_model.state()));
        let asked = job_model.kept().filter(|i| *i as u64 + 1 > after).take(at_most);
        expect_equal!(attached.entries, asked.map(|i| job_model.entry(i)).collect::<Vec<_>>());
        Ok(())
    }

    /// Reads the tail to its end. Entries that it does not show must be expired or trimmed, and
    /// reported as lost.
    async fn tail(&mut self, node: usize, at_most: usize) -> Result<(), TestCaseError> {
        let mut shown: HashMap<Key, Vec<u64>> = HashMap::new();
        let mut lost = false;
        loop {
            let store = &self.nodes[node].store;
            let tails = store.tail(&self.positions, at_most).await.map_err(failed)?;
            expect_equal!(tails.len(), self.positions.len());
            let mut more = false;
            for (position, tail) in self.positions.iter_mut().zip(tails) {
                expect(tail.changes.len() <= at_most, || "more than asked for".into())?;
                more |= !tail.changes.is_empty();
                lost |= tail.lost;
                position.1 = tail.next;
                for change in tail.changes {
                    shown.entry(change.job).or_default().push(change.offset);
                }
            }
            if !more {
                break;
            }
        }
        for (job, job_model) in self.keys.iter().zip(&self.jobs) {
            let unread = self.unread.remove(job).unwrap_or_default();
            let shown = shown.remove(job).unwrap_or_default();
            let told = || format!("appended {unread:?}, shown {shown:?}, lost: {lost}");
            let mut rest = unread.iter();
            expect(shown.iter().all(|offset| rest.any(|one| one == offset)), told)?;
            expect(lost || shown.len() == unread.len(), told)?;
            let kept = job_model.as_ref().map_or(0, |job| job.kept().len()).min(unread.len());
            expect(shown.ends_with(&unread[unread.len() - kept..]), told)?;
        }
        Ok(())
    }
}
