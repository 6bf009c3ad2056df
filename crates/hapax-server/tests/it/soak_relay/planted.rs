//! Tests the checker with relays and consumers that have the bugs which it must find.

use std::collections::HashSet;

use crate::soak_bus::random::Random;
use crate::soak_relay::checker::{History, Row, violations};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Polls `id > last`, and never sees rows that commit late.
    PollsById,
    AcknowledgedBeforeSent,
    /// A new id at each publish, so that the inbox recognises nothing.
    NewIdAtPublish,
    TwoRelaysWithoutLeases,
    /// The inbox is marked, then the effect is committed.
    MarkedBeforeCommit,
    SendsUncommitted,
}

const ROWS: usize = 120;
const KEYS: usize = 3;

/// Writers, relays and a consumer in random steps.
struct World {
    bug: Bug,
    random: Random,
    time: u64,
    history: History,
    /// By row: whether it is visible, and whether the relay is done with it.
    visible: Vec<bool>,
    done: Vec<bool>,
    inbox: HashSet<String>,
    published: u64,
    last: Option<usize>,
}

impl World {
    fn run(bug: Bug, seed: u64) -> History {
        let mut world = Self {
            bug,
            random: Random::new(seed),
            time: 0,
            history: History { undisturbed: false, ..History::default() },
            visible: Vec::new(),
            done: Vec::new(),
            inbox: HashSet::new(),
            published: 0,
            last: None,
        };
        for _ in 0..ROWS {
            world.begin();
            if world.random.one_in(2) {
                world.end_one();
            }
            // The relay falls behind from time to time.
            if world.random.one_in(3) {
                world.relay();
            }
        }
        while world.end_one() {}
        for _ in 0..ROWS * 4 {
            world.relay();
        }
        world.history
    }

    fn begin(&mut self) {
        self.time += 1;
        let n = self.history.rows.len();
        let key = format!("key-{}", self.random.below(KEYS));
        let row = Row { id: format!("{n}"), key, began: self.time, ended: 0, committed: false };
        self.history.rows.push(row);
        self.visible.push(false);
        self.done.push(false);
    }

    /// Ends an open transaction, not always the oldest: some commit late, some roll back.
    fn end_one(&mut self) -> bool {
        let open: Vec<_> =
            (0..self.history.rows.len()).filter(|n| self.history.rows[*n].ended == 0).collect();
        if open.is_empty() {
            return false;
        }
        let which = open[self.random.below(open.len())];
        self.time += 1;
        let committed = !self.random.one_in(6);
        let row = &mut self.history.rows[which];
        (row.ended, row.committed) = (self.time, committed);
        self.visible[which] = committed;
        true
    }

    fn relay(&mut self) {
        let seen = |n: &usize| self.visible[*n] || self.bug == Bug::SendsUncommitted;
        let next = |world: &Self| {
            (0..world.done.len()).filter(seen).find(|n| match world.bug {
                Bug::PollsById => world.last.is_none_or(|last| *n > last),
                _ => !world.done[*n],
            })
        };
        let Some(mut which) = next(self) else { return };
        if self.bug == Bug::TwoRelaysWithoutLeases && self.random.one_in(3) {
            // The other relay has read the same page, and is ahead.
            let key = &self.history.rows[which].key;
            let ahead = |n: &usize| self.visible[*n] && self.history.rows[*n].key == *key;
            which = (which + 1..self.done.len()).rev().find(ahead).unwrap_or(which);
        }
        self.last = self.last.max(Some(which));
        let dies = self.random.one_in(5);
        if self.bug == Bug::AcknowledgedBeforeSent {
            self.done[which] = true;
            if dies {
                return;
            }
        }
        self.send(which);
        // The relay may die between the send and the mark: the row is sent again.
        if !dies {
            self.done[which] = true;
        }
    }

    fn send(&mut self, which: usize) {
        self.published += 1;
        let id = match self.bug {
            Bug::NewIdAtPublish => format!("p{}", self.published),
            _ => self.history.rows[which].id.clone(),
        };
        self.history.deliveries.push(id.clone());
        if !self.inbox.insert(id.clone()) {
            return;
        }
        if self.bug == Bug::MarkedBeforeCommit && self.random.one_in(5) {
            return;
        }
        self.history.effects.push(id);
    }
}

#[test]
fn relay_soak_checker_accepts_relay_without_bugs() {
    for seed in 0..20 {
        let wrong = violations(&World::run(Bug::None, seed));
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test]
fn relay_soak_checker_finds_every_planted_bug() {
    let bugs = [
        (Bug::PollsById, "never came"),
        (Bug::AcknowledgedBeforeSent, "never came"),
        (Bug::NewIdAtPublish, "an id of nobody's"),
        (Bug::TwoRelaysWithoutLeases, "of the same key"),
        (Bug::MarkedBeforeCommit, "never happened"),
        (Bug::SendsUncommitted, "was rolled back"),
    ];
    for (bug, complaint) in bugs {
        for seed in 0..20 {
            let wrong = violations(&World::run(bug, seed));
            assert!(wrong.iter().any(|what| what.contains(complaint)), "{bug:?}: {wrong:?}");
        }
    }
}

#[test]
fn relay_soak_without_faults_sends_nothing_twice() {
    let row = Row { id: "1".into(), key: "k".into(), began: 1, ended: 2, committed: true };
    let twice = History {
        rows: vec![row],
        deliveries: vec!["1".into(), "1".into()],
        effects: vec!["1".into()],
        undisturbed: true,
    };
    assert_eq!(violations(&twice).len(), 1);
}
