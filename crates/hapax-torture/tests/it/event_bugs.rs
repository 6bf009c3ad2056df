//! Planted bugs of events.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, HistoryEntry, LogPosition, Observation, SeenFrame};

use crate::simulation::{Model, Moment, accepts, finds, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventBug {
    None,
    DuplicateSent,
    Reordered,
    SilentGap,
    AcknowledgedBeforeAppend,
    DuplicateAppended,
    GapForNothing,
    StreamNeverEnds,
    InventedEvent,
}

const PUBLISHERS: u32 = 3;
const FOLLOWERS: u32 = 4;

struct EventModel {
    bug: EventBug,
    log: Vec<u64>,
    places: HashMap<u64, u64>,
    next_offset: HashMap<u32, usize>,
}

fn at(offset: u64) -> LogPosition {
    LogPosition { epoch: 7, offset }
}

impl EventModel {
    fn publish(&mut self, moment: &mut Moment) -> Observation {
        // Publishers repeat themselves and each other.
        let seq = 1 + moment.random.below(60);
        let known = self.places.get(&seq).copied();
        let offset = match known.filter(|_| self.bug != EventBug::DuplicateAppended) {
            Some(offset) => offset,
            None => {
                let offset = self.log.len() as u64 + 1;
                let crashed =
                    self.bug == EventBug::AcknowledgedBeforeAppend && moment.random.one_in(8);
                if !crashed {
                    self.log.push(seq);
                    self.places.insert(seq, offset);
                }
                offset
            }
        };
        let outcome = moment.heard(CallOutcome::Done(at(offset)));
        Observation::Publish { job: "j".to_owned(), stage: "s".to_owned(), seq, outcome }
    }

    fn frame(&mut self, client: u32, moment: &mut Moment) -> Option<SeenFrame> {
        let next = self.next_offset.entry(client).or_default();
        let mut bug = |planted: EventBug| self.bug == planted && moment.random.one_in(10);
        if bug(EventBug::DuplicateSent) {
            *next = next.saturating_sub(1);
        }
        if bug(EventBug::SilentGap) && *next + 1 < self.log.len() {
            *next += 1;
        }
        if bug(EventBug::GapForNothing) {
            return Some(SeenFrame::Gap);
        }
        if bug(EventBug::Reordered) && *next + 1 < self.log.len() {
            self.log.swap(*next, *next + 1);
        }
        let mut seq = *self.log.get(*next)?;
        if bug(EventBug::InventedEvent) {
            seq += 1000;
        }
        *next += 1;
        Some(SeenFrame::Event("s".to_owned(), seq, at(*next as u64)))
    }
}

impl Model for EventModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        if client < PUBLISHERS {
            return moment.random.one_in(3).then(|| self.publish(moment));
        }
        let frame = self.frame(client, moment)?;
        Some(Observation::Followed { job: "j".to_owned(), frame })
    }

    fn finish(&mut self, moment: &mut Moment) -> Vec<(u32, Observation)> {
        let mut rest = Vec::new();
        for client in PUBLISHERS..PUBLISHERS + FOLLOWERS {
            let mut saw = |frame| {
                rest.push((client, Observation::Followed { job: "j".to_owned(), frame }));
            };
            while let Some(frame) = self.frame(client, moment) {
                saw(frame);
            }
            if self.bug != EventBug::StreamNeverEnds {
                saw(SeenFrame::End);
            }
        }
        rest
    }
}

fn history(bug: EventBug, seed: u64) -> Vec<HistoryEntry> {
    let (places, next_offset) = (HashMap::new(), HashMap::new());
    let mut model = EventModel { bug, log: Vec::new(), places, next_offset };
    simulate(&mut model, PUBLISHERS + FOLLOWERS, 600, seed)
}

#[test]
fn torture_checker_accepts_right_events() {
    accepts(|seed| history(EventBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_event_bugs() {
    for (bug, complaint) in [
        (EventBug::DuplicateSent, "twice"),
        (EventBug::Reordered, "acknowledged was"),
        (EventBug::SilentGap, "expected"),
        (EventBug::AcknowledgedBeforeAppend, "never got"),
        (EventBug::DuplicateAppended, "and at"),
        (EventBug::GapForNothing, "got a gap"),
        (EventBug::StreamNeverEnds, "never saw the end"),
        (EventBug::InventedEvent, "which nobody sent"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| history(bug, seed));
    }
}
