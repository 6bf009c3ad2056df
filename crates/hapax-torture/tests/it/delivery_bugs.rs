//! Planted bugs of the proxy, and of outbox, relay and inbox.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation, ProxyAnswer};

use crate::simulation::{Model, Moment, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyBug {
    None,
    RunsAgain,
    OtherAnswer,
    AnsweredBeforeSettle,
    AnsweredWithoutRunning,
}

#[derive(Default)]
struct ProxyModel {
    bug: Option<ProxyBug>,
    answers: HashMap<String, String>,
    unknown: Vec<String>,
    steps: u64,
    effects: Vec<(u64, Observation)>,
}

impl Model for ProxyModel {
    fn step(&mut self, _client: u32, moment: &mut Moment) -> Option<Observation> {
        self.steps += 1;
        let key = format!("k{}", self.steps / 12);
        let bug = |planted: ProxyBug, moment: &mut Moment| {
            self.bug == Some(planted) && moment.random.one_in(6)
        };
        let again = bug(ProxyBug::RunsAgain, moment);
        let outcome = if let Some(answer) = self.answers.get(&key).filter(|_| !again) {
            let changed = bug(ProxyBug::OtherAnswer, moment);
            let body = if changed { format!("{answer}!") } else { answer.clone() };
            CallOutcome::Done(ProxyAnswer { body, replayed: true })
        } else if self.unknown.contains(&key) && !again {
            refused("outcome-unknown")
        } else {
            let body = format!("order {}", self.steps);
            if !bug(ProxyBug::AnsweredWithoutRunning, moment) {
                let effect = Observation::UpstreamEffect { key: key.clone() };
                self.effects.push((moment.now, effect));
            }
            // The proxy is killed while the request runs.
            if moment.random.one_in(5) || bug(ProxyBug::AnsweredBeforeSettle, moment) {
                self.unknown.push(key.clone());
            } else {
                self.answers.insert(key.clone(), body.clone());
            }
            let settled = self.answers.contains_key(&key);
            if settled || self.bug == Some(ProxyBug::AnsweredBeforeSettle) {
                CallOutcome::Done(ProxyAnswer { body, replayed: false })
            } else {
                CallOutcome::Unknown("cut".to_owned())
            }
        };
        let outcome = moment.heard(outcome);
        Some(Observation::ProxyRequest { key, outcome })
    }
}

fn proxy_history(bug: ProxyBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = ProxyModel { bug: Some(bug), ..ProxyModel::default() };
    let mut history = simulate(&mut model, 4, 500, seed);
    let effects = model.effects.into_iter();
    history.extend(effects.map(|(now, what)| HistoryEntry { from: now, to: now, client: 0, what }));
    history
}

#[test]
fn torture_checker_accepts_right_proxy() {
    accepts(|seed| proxy_history(ProxyBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_proxy_bugs() {
    for (bug, complaint) in [
        (ProxyBug::RunsAgain, "ran it twice"),
        (ProxyBug::OtherAnswer, "another one is"),
        (ProxyBug::AnsweredBeforeSettle, "after it was answered"),
        (ProxyBug::AnsweredWithoutRunning, "had not run it"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| proxy_history(bug, seed));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutboxBug {
    None,
    RolledBackIsSent,
    AckBeforeSend,
    OrderBroken,
    InboxForgets,
    EffectLost,
    MessageOfNobody,
}

const WRITERS: u32 = 3;

struct OutboxModel {
    bug: OutboxBug,
    queue: Vec<(String, String)>,
    rows: u64,
    effects: Vec<String>,
}

impl OutboxModel {
    fn commit(&mut self, moment: &mut Moment) -> Observation {
        self.rows += 1;
        let (id, key) = (format!("id-{}", self.rows), format!("key-{}", moment.random.below(3)));
        let committed = !moment.random.one_in(5);
        let sent = committed || self.bug == OutboxBug::RolledBackIsSent;
        if sent {
            self.queue.push((id.clone(), key.clone()));
        }
        let outcome =
            if committed { moment.heard(CallOutcome::Done(())) } else { refused("on purpose") };
        Observation::OutboxCommit { id, key, outcome }
    }

    fn send(&mut self, moment: &mut Moment) -> Option<Observation> {
        let bug = |planted: OutboxBug, moment: &mut Moment| {
            self.bug == planted && moment.random.one_in(8)
        };
        if bug(OutboxBug::OrderBroken, moment) {
            self.queue.reverse();
        }
        let (id, _) = self.queue.first()?.clone();
        if bug(OutboxBug::MessageOfNobody, moment) {
            return Some(Observation::Delivery { id: "other".to_owned() });
        }
        // The relay dies before its ack, and sends again.
        let acknowledged = !moment.random.one_in(4);
        if acknowledged {
            self.queue.remove(0);
        }
        if bug(OutboxBug::AckBeforeSend, moment) {
            return None;
        }
        let known = self.effects.contains(&id) && self.bug != OutboxBug::InboxForgets;
        if !known && !bug(OutboxBug::EffectLost, moment) {
            self.effects.push(id.clone());
        }
        Some(Observation::Delivery { id })
    }
}

impl Model for OutboxModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        if client < WRITERS { Some(self.commit(moment)) } else { self.send(moment) }
    }

    fn finish(&mut self, moment: &mut Moment) -> Vec<(u32, Observation)> {
        let mut rest = Vec::new();
        while !self.queue.is_empty() {
            rest.extend(self.send(moment).map(|sent| (WRITERS, sent)));
        }
        rest.extend(self.effects.iter().map(|id| (0, Observation::InboxEffect { id: id.clone() })));
        rest
    }
}

fn outbox_history(bug: OutboxBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = OutboxModel { bug, queue: Vec::new(), rows: 0, effects: Vec::new() };
    simulate(&mut model, WRITERS + 1, 400, seed)
}

/// The same with a broker instead of a webhook.
fn broker_history(bug: OutboxBug, seed: u64) -> Vec<HistoryEntry> {
    let mut history = outbox_history(bug, seed);
    for entry in &mut history {
        entry.what = match entry.what.clone() {
            Observation::OutboxCommit { id, key, outcome } => {
                Observation::BrokerCommit { id, key, outcome }
            }
            Observation::Delivery { id } => Observation::BrokerDelivery { id },
            Observation::InboxEffect { id } => Observation::BrokerEffect { id },
            other => other,
        };
    }
    history
}

#[test]
fn torture_checker_accepts_right_outbox() {
    accepts(|seed| outbox_history(OutboxBug::None, seed));
    accepts(|seed| broker_history(OutboxBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_outbox_bugs() {
    for (bug, complaint) in [
        (OutboxBug::RolledBackIsSent, "but was rolled back"),
        (OutboxBug::AckBeforeSend, "never sent"),
        (OutboxBug::OrderBroken, "of the same key"),
        (OutboxBug::InboxForgets, "times"),
        (OutboxBug::EffectLost, "its effect never happened"),
        (OutboxBug::MessageOfNobody, "of nobody's"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| outbox_history(bug, seed));
        finds(&format!("broker {bug:?}"), complaint, |seed| broker_history(bug, seed));
    }
}
