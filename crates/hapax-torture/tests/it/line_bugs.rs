//! Planted bugs of the LINE gateway.

use std::collections::{HashMap, HashSet};

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation};

use crate::simulation::{Model, Moment, accepts, finds, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineBug {
    None,
    /// A right gateway that is killed now and then.
    KilledGateway,
    AnsweredBeforeStored,
    DuplicateNotRecognised,
    FenceOfTheFirstAttempt,
    NewKeyForRetry,
    KeyOfAnotherEvent,
    OrderBroken,
    EventOfNobody,
    HandledAgainAfterDone,
}

/// So many clients send; one more is the gateway.
const SENDERS: u32 = 3;

struct LineModel {
    bug: LineBug,
    /// The event that each sender repeats until it is answered.
    sending: HashMap<u32, u64>,
    stored: HashSet<String>,
    waiting: Vec<(u32, String)>,
    attempts: HashMap<String, u64>,
    fence: u64,
}

impl LineModel {
    fn bug(&self, wanted: LineBug, moment: &mut Moment) -> bool {
        self.bug == wanted && moment.random.one_in(6)
    }

    fn send(&mut self, client: u32, moment: &mut Moment) -> Observation {
        let number = *self.sending.entry(client).or_default();
        let event = format!("e{client}-{number}");
        let is_lost = self.bug(LineBug::AnsweredBeforeStored, moment);
        let is_unrecognised = self.bug(LineBug::DuplicateNotRecognised, moment);
        if (self.stored.insert(event.clone()) && !is_lost) || is_unrecognised {
            if is_unrecognised {
                self.attempts.remove(&event);
            }
            self.waiting.push((client, event.clone()));
        }
        let outcome = moment.heard(CallOutcome::Done(()));
        // Half of the answered events are delivered once more.
        if outcome.done().is_some() && moment.random.one_in(2) {
            self.sending.insert(client, number + 1);
        }
        Observation::LineWebhook { source: format!("U{client}"), event, outcome }
    }

    fn handle(&mut self, moment: &mut Moment) -> Option<Observation> {
        if self.bug(LineBug::OrderBroken, moment) {
            self.waiting.reverse();
        }
        let (client, event) = self.waiting.first()?.clone();
        let source = format!("U{client}");
        self.fence += 1;
        let attempt = self.attempts.entry(event.clone()).or_default();
        *attempt += 1;
        let attempt = *attempt;
        let is_stale = attempt > 1 && self.bug(LineBug::FenceOfTheFirstAttempt, moment);
        let fence = if is_stale { 1 } else { self.fence };
        let ok = !moment.random.one_in(6);
        let is_killed = self.bug(LineBug::KilledGateway, moment)
            || self.bug(LineBug::HandledAgainAfterDone, moment);
        self.waiting.remove(0);
        if !ok || is_killed {
            // Those behind it may pass.
            self.waiting.push((client, event.clone()));
        }
        let mut key = format!("key of {event}");
        if attempt > 1 && self.bug(LineBug::NewKeyForRetry, moment) {
            key = format!("key {attempt} of {event}");
        }
        if self.bug(LineBug::KeyOfAnotherEvent, moment) {
            key = format!("key of U{client}");
        }
        let event = if self.bug(LineBug::EventOfNobody, moment) {
            format!("x{}", self.fence)
        } else {
            event
        };
        Some(Observation::LineHandled { source, event, key, attempt, fence, ok })
    }
}

impl Model for LineModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        if client < SENDERS { Some(self.send(client, moment)) } else { self.handle(moment) }
    }

    fn finish(&mut self, moment: &mut Moment) -> Vec<(u32, Observation)> {
        let mut rest = Vec::new();
        while !self.waiting.is_empty() {
            rest.extend(self.handle(moment).map(|handled| (SENDERS, handled)));
        }
        if self.bug == LineBug::KilledGateway {
            let (kind, target) = ("kill-hapax".to_owned(), "line-1".to_owned());
            rest.push((0, Observation::Fault { kind, target }));
        }
        rest
    }
}

fn line_history(bug: LineBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = LineModel {
        bug,
        sending: HashMap::new(),
        stored: HashSet::new(),
        waiting: Vec::new(),
        attempts: HashMap::new(),
        fence: 0,
    };
    simulate(&mut model, SENDERS + 1, 400, seed)
}

#[test]
fn torture_checker_accepts_right_line_gateway() {
    accepts(|seed| line_history(LineBug::None, seed));
    accepts(|seed| line_history(LineBug::KilledGateway, seed));
}

#[test]
fn torture_checker_finds_planted_line_bugs() {
    for (bug, complaint) in [
        (LineBug::AnsweredBeforeStored, "never handled"),
        (LineBug::DuplicateNotRecognised, "twice as attempt 1"),
        (LineBug::FenceOfTheFirstAttempt, "no greater fence"),
        (LineBug::NewKeyForRetry, "has two keys"),
        (LineBug::KeyOfAnotherEvent, "the key of another event"),
        (LineBug::OrderBroken, "which had arrived before it"),
        (LineBug::EventOfNobody, "nobody sent it"),
        (LineBug::HandledAgainAfterDone, "handled again after it was done"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| line_history(bug, seed));
    }
}
