//! Compares logs with their model, which keeps all events and derives everything else from them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use hapax_core::log::{
    Appended, Attached, Cursor, Epoch, LogEntry, LogEvent, LogRetention, PageRequest, TailPosition,
};
use hapax_core::{Key, Tenant};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::concurrent::{ACTORS, Actor, SequentialModel};
use super::{HistoryTimes, Model, expect, expect_equal, failed};
use crate::context::{LONG, LawContext};
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

impl EventSpec {
    fn event(self, job: &Key) -> LogEvent {
        let text = format!("{}/{}/{}", self.stage, self.seq, self.content);
        let stage = format!("stage{}", self.stage);
        let event = event_with_payload(job, &stage, self.seq, text.into());
        LogEvent { closes: self.closes, ..event }
    }
}

fn event() -> impl Strategy<Value = EventSpec> {
    let content = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
    (0..JOBS, 0..2_u8, 0..6_u64, content, prop::bool::weighted(0.05)).prop_map(
        |(job, stage, seq, content, closes)| EventSpec { job, stage, seq, content, closes },
    )
}

fn kept_entries() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(1_u64), 1 => Just(2), 4 => Just(100)]
}

pub(super) fn steps() -> impl Strategy<Value = Vec<LogHistoryStep>> {
    let events = prop::collection::vec(event(), 1..5);
    let append = (0..2_usize, events, kept_entries(), prop::bool::weighted(0.1));
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
#[derive(Clone)]
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

/// The model of one job.
#[derive(Clone, Default)]
pub(super) struct ModelLog {
    job: Option<ModelJob>,
    /// The last epoch of the job; the next one must be greater.
    epoch: Option<Epoch>,
}

impl ModelLog {
    /// Compares the answer to an event with the model, and updates the model. The offset of the entry,
    /// if it is new.
    fn append(
        &mut self,
        event: LogEvent,
        answer: &Appended,
        keep: &LogRetention,
        brief: bool,
    ) -> Result<Option<u64>, TestCaseError> {
        if let Some(known) = self.job.as_ref().and_then(|job| job.knows(&event)) {
            expect_equal!(*answer, known);
            return Ok(None);
        }
        let Appended::Published(at) = *answer else {
            return Err(TestCaseError::fail(format!("new, but {answer:?}")));
        };
        if self.job.is_none() {
            expect(Some(at.epoch) > self.epoch, || "an epoch came again".into())?;
            self.epoch = Some(at.epoch);
        }
        let job = self.job.get_or_insert_with(|| ModelJob {
            epoch: at.epoch,
            events: Vec::new(),
            trimmed: 0,
            brief,
        });
        job.events.push(event);
        job.brief = brief;
        let entries = usize::try_from(keep.max_entries).unwrap_or(usize::MAX);
        job.trimmed = job.trimmed.max(job.events.len().saturating_sub(entries));
        expect_equal!(at, job.at(job.events.len() - 1));
        Ok(Some(at.offset))
    }

    fn attach(&self, page: &PageRequest, attached: Option<&Attached>) -> Result<(), TestCaseError> {
        let (Some(attached), Some(job)) = (attached, &self.job) else {
            expect_equal!(attached.is_some(), self.job.is_some());
            return Ok(());
        };
        let head = &attached.head;
        expect_equal!(head.end(), job.at(job.events.len() - 1));
        expect_equal!(head.first, job.trimmed as u64 + 1);
        expect_equal!(head.closed, job.closed());
        expect_equal!(head.state, Some(job.state()));
        let asked = job.kept().filter(|i| *i as u64 + 1 > page.after).take(page.max_entries);
        expect_equal!(attached.entries, asked.map(|i| job.entry(i)).collect::<Vec<_>>());
        Ok(())
    }
}

pub(super) struct LogModel {
    times: HistoryTimes,
    nodes: [LawContext; 2],
    keys: Vec<Key>,
    jobs: [ModelLog; JOBS],
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
            jobs: Default::default(),
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
        let jobs = self.jobs.iter_mut().map(|model| &mut model.job);
        jobs.filter_map(|job| job.take_if(|job| job.brief)).count() > 0
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
        let made: Vec<_> = events.iter().map(|spec| spec.event(&self.keys[spec.job])).collect();
        let answers = self.nodes[node].store.append(&made, keep).await.map_err(failed)?;
        expect_equal!(answers.len(), made.len());
        for ((spec, event), answer) in events.iter().zip(made).zip(&answers) {
            let key = event.job.clone();
            let new = self.jobs[spec.job].append(event, answer, keep, brief)?;
            self.unread.entry(key).or_default().extend(new);
        }
        Ok(())
    }

    async fn attach(
        &self,
        node: usize,
        job: usize,
        after: u64,
        at_most: usize,
    ) -> Result<(), TestCaseError> {
        let page = PageRequest::new(after, at_most).with_state();
        let attached = self.nodes[node].store.attach(&self.keys[job], &page).await;
        self.jobs[job].attach(&page, attached.map_err(failed)?.as_ref())
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
        for (job, model) in self.keys.iter().zip(&self.jobs) {
            let unread = self.unread.remove(job).unwrap_or_default();
            let shown = shown.remove(job).unwrap_or_default();
            let told = || format!("appended {unread:?}, shown {shown:?}, lost: {lost}");
            let mut rest = unread.iter();
            expect(shown.iter().all(|offset| rest.any(|one| one == offset)), told)?;
            expect(lost || shown.len() == unread.len(), told)?;
            let kept = model.job.as_ref().map_or(0, |job| job.kept().len()).min(unread.len());
            expect(shown.ends_with(&unread[unread.len() - kept..]), told)?;
        }
        Ok(())
    }
}

/// A step of a concurrent history, and the call that it makes on the one job.
#[derive(Clone, Copy, Debug)]
pub(super) enum LogCall {
    Append { event: EventSpec, entries: u64 },
    Attach { after: u64 },
}

#[derive(Clone, Debug)]
pub(super) enum LogAnswer {
    Appended(Appended),
    Attached(Option<Attached>),
}

/// The steps of several actors at once, each with the number of its actor. All keep equally many
/// entries, as nodes with the same settings do: a store may trim for several appends at once.
pub(super) fn concurrent_steps(
    count: Range<usize>,
) -> impl Strategy<Value = Vec<(usize, LogCall)>> {
    let step = (0..ACTORS, prop::option::weighted(0.75, event()), 0..4_u64);
    let steps = prop::collection::vec(step, count);
    (kept_entries(), steps).prop_map(|(entries, steps)| {
        let call = |event, after| match event {
            Some(event) => LogCall::Append { event, entries },
            None => LogCall::Attach { after },
        };
        steps.into_iter().map(|(actor, event, after)| (actor, call(event, after))).collect()
    })
}

/// A client of one job, which presents nothing that an earlier answer gave it.
#[derive(Default)]
pub(super) struct LogActor;

impl LogCall {
    fn page(after: u64) -> PageRequest {
        PageRequest::new(after, 100).with_state()
    }

    fn keep(max_entries: u64) -> LogRetention {
        LogRetention { retention: LONG, max_entries }
    }
}

impl Actor for LogActor {
    type Step = LogCall;
    type Model = ModelLog;

    fn call(&mut self, step: LogCall) -> LogCall {
        step
    }

    async fn run(context: &LawContext, call: &LogCall) -> Result<LogAnswer, TestCaseError> {
        let job = context.job("k0");
        match *call {
            LogCall::Append { event, entries } => {
                let (events, keep) = ([event.event(&job)], LogCall::keep(entries));
                let answers = context.store.append(&events, &keep).await.map_err(failed)?;
                Ok(LogAnswer::Appended(answers[0]))
            }
            LogCall::Attach { after } => {
                let attached = context.store.attach(&job, &LogCall::page(after)).await;
                attached.map(LogAnswer::Attached).map_err(failed)
            }
        }
    }

    fn says_only_busy(_: &LogAnswer) -> bool {
        false
    }

    fn heard(&mut self, _: &LogAnswer) {}
}

impl SequentialModel for ModelLog {
    type Call = LogCall;
    type Answer = LogAnswer;

    fn apply(&mut self, call: &LogCall, answer: &LogAnswer) -> Result<(), TestCaseError> {
        match (*call, answer) {
            (LogCall::Append { event, entries }, LogAnswer::Appended(answer)) => {
                // The model compares entries of one job, whatever its name.
                let job = Key::job(&Tenant::default(), "law", "k0").expect("a valid key");
                self.append(event.event(&job), answer, &LogCall::keep(entries), false).map(drop)
            }
            (LogCall::Attach { after }, LogAnswer::Attached(attached)) => {
                self.attach(&LogCall::page(after), attached.as_ref())
            }
            (call, answer) => unreachable!("{call:?} is never answered with {answer:?}"),
        }
    }
}
