//! Tests the checker with a gateway that has the bugs which it must find.

use std::collections::HashMap;

use crate::soak_bus::checker::{At, History, Losses, Name, Saw, violations};
use crate::soak_bus::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    OffByOneAtResume,
    ReplayToLiveLeak,
    AcknowledgedBeforeAppend,
    StateGoesBack,
    LateEventDropped,
    DuplicateAppended,
}

/// A gateway in a few lines: one log, clients that come and go, in random steps.
struct Gateway {
    bug: Bug,
    random: Random,
    log: Vec<Name>,
    dedup: HashMap<Name, u64>,
    state: u64,
    history: History,
    /// Per client: the next entry it gets, and how much of the log it had as a replay.
    clients: Vec<Client>,
}

#[derive(Clone, Copy, Default)]
struct Client {
    connected: bool,
    next: usize,
    /// A live entry that arrived while the replay was read, lost by the leak.
    leaked: bool,
}

fn at(offset: u64) -> At {
    At { epoch: 7, offset }
}

impl Gateway {
    fn publish(&mut self, name: Name) {
        let known = self.dedup.get(&name).copied();
        if let Some(offset) = known.filter(|_| self.bug != Bug::DuplicateAppended) {
            self.history.acknowledged.push((name, at(offset)));
            return;
        }
        let late = name.1 < self.state;
        let offset = self.log.len() as u64 + 1;
        let crashed = self.bug == Bug::AcknowledgedBeforeAppend && self.random.one_in(10);
        let dropped = self.bug == Bug::LateEventDropped && late;
        self.history.acknowledged.push((name.clone(), at(offset)));
        if crashed || dropped {
            return;
        }
        let going_back = self.bug == Bug::StateGoesBack;
        self.state = if going_back { name.1 } else { self.state.max(name.1) };
        self.dedup.insert(name.clone(), offset);
        self.log.push(name);
        self.history.states.push((at(offset), self.state));
    }

    fn client_step(&mut self, which: usize) {
        let client = &mut self.clients[which];
        if !client.connected {
            client.connected = true;
            client.leaked = false;
            if self.bug == Bug::OffByOneAtResume && client.next > 0 {
                client.next -= 1;
            }
            return;
        }
        if self.random.one_in(5) {
            client.connected = false;
            return;
        }
        // Subscribing after the replay was read loses the events in between.
        if self.bug == Bug::ReplayToLiveLeak && !client.leaked && client.next + 1 < self.log.len() {
            client.leaked = true;
            client.next += 1;
        }
        if let Some(name) = self.log.get(client.next) {
            client.next += 1;
            let saw = Saw::Event(name.clone(), at(client.next as u64));
            self.history.clients[which].push(saw);
        }
    }

    fn run(bug: Bug, seed: u64) -> History {
        let clients = 5;
        let history = History { clients: vec![Vec::new(); clients], ..History::default() };
        let mut gateway = Self {
            bug,
            random: Random::new(seed),
            log: Vec::new(),
            dedup: HashMap::new(),
            state: 0,
            history,
            clients: vec![Client::default(); clients],
        };
        let mut names: Vec<Name> = (1..60).map(|seq| ("work".to_owned(), seq)).collect();
        names.extend(names.clone().into_iter().step_by(3));
        gateway.random.shuffle_nearly(&mut names);
        for name in names {
            gateway.publish(name);
            for _ in 0..clients {
                let which = gateway.random.below(clients);
                gateway.client_step(which);
            }
        }
        gateway.publish(("done".to_owned(), 1000));
        while let Some(which) = gateway.clients.iter().position(|c| c.next < gateway.log.len()) {
            gateway.client_step(which);
        }
        gateway.history.clients.iter_mut().for_each(|saw| saw.push(Saw::End));
        gateway.history
    }
}

#[test]
fn bus_soak_checker_accepts_gateway_without_bugs() {
    for seed in 0..20 {
        let wrong = violations(&Gateway::run(Bug::None, seed), Losses::Never);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}

#[test]
fn bus_soak_checker_finds_every_planted_bug() {
    let bugs = [
        (Bug::OffByOneAtResume, "expected offset"),
        (Bug::ReplayToLiveLeak, "never came"),
        (Bug::AcknowledgedBeforeAppend, "two events were acknowledged"),
        (Bug::StateGoesBack, "the state went back"),
        (Bug::LateEventDropped, "never came"),
        (Bug::DuplicateAppended, "two places"),
    ];
    for (bug, complaint) in bugs {
        for seed in 0..20 {
            let wrong = violations(&Gateway::run(bug, seed), Losses::Never);
            assert!(wrong.iter().any(|what| what.contains(complaint)), "{bug:?}: {wrong:?}");
        }
    }
}

#[test]
fn bus_soak_loss_needs_gap_and_new_epoch() {
    let named = |seq| ("work".to_owned(), seq);
    let old = |offset| At { epoch: 7, offset };
    let new = |offset| At { epoch: 9, offset };
    let acknowledged = vec![(named(1), old(1)), (named(2), old(2)), (named(3), new(2))];
    let told = vec![
        Saw::Event(named(1), old(1)),
        Saw::Event(named(2), old(2)),
        Saw::Gap,
        Saw::Snapshot(old(0)),
        Saw::Event(named(1), old(1)),
        Saw::Event(named(3), new(2)),
        Saw::End,
    ];
    let silent = vec![Saw::Event(named(1), old(1)), Saw::Event(named(3), new(2)), Saw::End];
    let history = |clients| History { acknowledged: acknowledged.clone(), states: vec![], clients };
    assert_eq!(violations(&history(vec![told.clone()]), Losses::WithNewEpoch), [""; 0]);
    assert!(!violations(&history(vec![silent]), Losses::WithNewEpoch).is_empty());
    assert!(!violations(&history(vec![told]), Losses::Never).is_empty());
}
