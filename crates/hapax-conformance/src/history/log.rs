//! Logs against their model, which keeps every event for ever and computes everything else from that.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use hapax_core::Key;
use hapax_core::log::{Appended, Cursor, Epoch, LogEntry, LogEvent, LogRetention, TailPosition};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::{BRIEF, failed, holds, same, time};
use crate::Subject;
use crate::log::{entry, saying};
use crate::scene::Scene;

const JOBS: usize = 3;

#[derive(Clone, Debug)]
pub(super) enum Move {
    Append { node: usize, events: Vec<Said>, entries: u64, brief: bool },
    Attach { node: usize, job: usize, after: u64, at_most: usize },
    Tail { node: usize, at_most: usize },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    job: usize,
    stage: u8,
    seq: u64,
    content: u8,
    closes: bool,
}

pub(super) fn moves() -> impl Strategy<Value = Vec<Move>> {
    let content = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
    let said = (0..JOBS, 0..2_u8, 0..6_u64, content, prop::bool::weighted(0.05))
        .prop_map(|(job, stage, seq, content, closes)| Said { job, stage, seq, content, closes });
    let entries = prop_oneof![1 => Just(1_u64), 1 => Just(2), 4 => Just(100)];
    let append =
        (0..2_usize, prop::collection::vec(said, 1..5), entries, prop::bool::weighted(0.1));
    let at_most = prop_oneof![Just(0_usize), Just(1), Just(3), Just(100)];
    let one = prop_oneof![
        5 => append.prop_map(|(node, events, entries, brief)| Move::Append {
            node, events, entries, brief
        }),
        2 => (0..2_usize, 0..JOBS, 0..12_u64, at_most)
            .prop_map(|(node, job, after, at_most)| Move::Attach { node, job, after, at_most }),
        2 => (0..2_usize, 1..4_usize).prop_map(|(node, at_most)| Move::Tail { node, at_most }),
    ];
    prop::collection::vec(one, 1..24)
}

/// One life of a job: all its events, trimmed or not.
struct Life {
    epoch: Epoch,
    events: Vec<LogEvent>,
    trimmed: usize,
    brief: bool,
}

impl Life {
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

struct Play {
    nodes: [Scene; 2],
    jobs: Vec<Key>,
    lives: Vec<Option<Life>>,
    /// The last epoch of each job: the next one is greater.
    epochs: Vec<Option<Epoch>>,
    /// The offsets that the tail has not shown yet, by job.
    unread: HashMap<Key, Vec<u64>>,
    positions: Vec<(u16, TailPosition)>,
}

impl Play {
    async fn new(subject: Arc<dyn Subject>) -> Result<Self, TestCaseError> {
        let s = Scene::new(subject).await;
        let jobs: Vec<_> = (0..JOBS).map(|i| s.job(&format!("k{i}"))).collect();
        let mut partitions: Vec<_> =
            jobs.iter().map(|job| job.partition(s.store.partitions())).collect();
        partitions.sort_unstable();
        partitions.dedup();
        let ends: Vec<_> = partitions.iter().map(|p| (*p, TailPosition::end())).collect();
        let tails = s.store.tail(&ends, 1).await.map_err(failed)?;
        let positions = partitions.into_iter().zip(tails.into_iter().map(|tail| tail.next));
        Ok(Self {
            lives: (0..JOBS).map(|_| None).collect(),
            epochs: vec![None; JOBS],
            unread: HashMap::new(),
            positions: positions.collect(),
            jobs,
            nodes: [s.clone(), s.reopened().await],
        })
    }

    async fn append(
        &mut self,
        node: usize,
        events: Vec<Said>,
        keep: &LogRetention,
        brief: bool,
    ) -> Result<(), TestCaseError> {
        let made: Vec<_> = events
            .iter()
            .map(|said| {
                let text = format!("{}/{}/{}", said.stage, said.seq, said.content);
                let stage = format!("stage{}", said.stage);
                let event = saying(&self.jobs[said.job], &stage, said.seq, text.into());
                LogEvent { closes: said.closes, ..event }
            })
            .collect();
        let answers = self.nodes[node].store.append(&made, keep).await.map_err(failed)?;
        same!(answers.len(), made.len());
        for ((said, event), answer) in events.iter().zip(made).zip(answers) {
            self.follow(said.job, event, answer, keep, brief)?;
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
        if let Some(known) = self.lives[job].as_ref().and_then(|life| life.knows(&event)) {
            same!(answer, known);
            return Ok(());
        }
        let Appended::Published(at) = answer else {
            return Err(TestCaseError::fail(format!("new, but {answer:?}")));
        };
        if self.lives[job].is_none() {
            holds(Some(at.epoch) > self.epochs[job], || "an epoch came again".into())?;
            self.epochs[job] = Some(at.epoch);
        }
        let life = self.lives[job].get_or_insert_with(|| Life {
            epoch: at.epoch,
            events: Vec::new(),
            trimmed: 0,
            brief,
        });
        self.unread.entry(event.job.clone()).or_default().push(life.events.len() as u64 + 1);
        life.events.push(event);
        life.brief = brief;
        let entries = usize::try_from(keep.max_entries).unwrap_or(usize::MAX);
        life.trimmed = life.trimmed.max(life.events.len().saturating_sub(entries));
        same!(at, life.at(life.events.len() - 1));
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
        let attached = store.attach(&self.jobs[job], after, at_most).await.map_err(failed)?;
        let (Some(attached), Some(life)) = (&attached, &self.lives[job]) else {
            same!(attached.is_some(), self.lives[job].is_some());
            return Ok(());
        };
        let head = &attached.head;
        same!(head.end(), life.at(life.events.len() - 1));
        same!(head.first, life.trimmed as u64 + 1);
        same!(head.closed, life.closed());
        same!(head.state, life.state());
        let asked = life.kept().filter(|i| *i as u64 + 1 > after).take(at_most);
        same!(attached.entries, asked.map(|i| life.entry(i)).collect::<Vec<_>>());
        Ok(())
    }

    /// Reads everything; what it did not show must be forgotten, and said to be lost.
    async fn tail(&mut self, node: usize, at_most: usize) -> Result<(), TestCaseError> {
        let mut shown: HashMap<Key, Vec<u64>> = HashMap::new();
        let mut lost = false;
        loop {
            let store = &self.nodes[node].store;
            let tails = store.tail(&self.positions, at_most).await.map_err(failed)?;
            same!(tails.len(), self.positions.len());
            let mut more = false;
            for (position, tail) in self.positions.iter_mut().zip(tails) {
                holds(tail.changes.len() <= at_most, || "more than asked for".into())?;
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
        for (job, life) in self.jobs.iter().zip(&self.lives) {
            let unread = self.unread.remove(job).unwrap_or_default();
            let shown = shown.remove(job).unwrap_or_default();
            let told = || format!("appended {unread:?}, shown {shown:?}, lost: {lost}");
            let mut rest = unread.iter();
            holds(shown.iter().all(|offset| rest.any(|one| one == offset)), told)?;
            holds(lost || shown.len() == unread.len(), told)?;
            let kept = life.as_ref().map_or(0, |life| life.kept().len()).min(unread.len());
            holds(shown.ends_with(&unread[unread.len() - kept..]), told)?;
        }
        Ok(())
    }

    /// Lets everything brief come to its end.
    async fn pass(&mut self) {
        let mut passed = false;
        for life in &mut self.lives {
            if life.as_ref().is_some_and(|life| life.brief) {
                *life = None;
                passed = true;
            }
        }
        if passed {
            self.nodes[0].outlive(2 * BRIEF).await;
        }
    }
}

pub(super) async fn play(subject: Arc<dyn Subject>, moves: Vec<Move>) -> Result<(), TestCaseError> {
    let mut play = Play::new(subject).await?;
    for m in moves {
        match m {
            Move::Append { node, events, entries, brief } => {
                let keep = LogRetention { retention: time(brief), max_entries: entries };
                play.append(node, events, &keep, brief).await?;
            }
            Move::Attach { node, job, after, at_most } => {
                play.attach(node, job, after, at_most).await?;
            }
            Move::Tail { node, at_most } => play.tail(node, at_most).await?,
        }
        play.pass().await;
    }
    play.tail(0, 2).await
}
