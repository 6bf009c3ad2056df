//! Planted bugs of records.

use std::collections::HashMap;

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation, SeenRecord};

use crate::simulation::{Model, Moment, accepts, finds, refused, simulate};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordBug {
    None,
    PutIgnoresVersion,
    AcknowledgedWriteLost,
    StaleRead,
    RefusedPutStored,
    DeleteIgnoresVersion,
    VersionReused,
    LateRetryUndoes,
    MissingWhileStored,
    RefusedForNothing,
    CreateRefusedForNothing,
}

struct RecordModel {
    bug: RecordBug,
    stored: Option<SeenRecord>,
    replaced: Option<SeenRecord>,
    versions: u64,
    values: u64,
    /// The version that each client saw last; `None` for no record.
    seen: HashMap<u32, Option<String>>,
    /// A write that a driver repeats later, although its answer only got lost.
    to_repeat: Option<SeenRecord>,
}

impl RecordModel {
    fn put(&mut self, client: u32, expected: Option<String>, moment: &mut Moment) -> Observation {
        self.values += 1;
        let (key, value) = ("k".to_owned(), self.values);
        let current = self.stored.as_ref().map(|record| record.version.clone());
        let fits = current == expected;
        let ignored = self.bug == RecordBug::PutIgnoresVersion && moment.random.one_in(4);
        let nothing = match self.bug {
            RecordBug::RefusedForNothing => moment.random.one_in(8),
            RecordBug::CreateRefusedForNothing => expected.is_none() && moment.random.one_in(2),
            _ => false,
        };
        if nothing || !fits && !ignored {
            if self.bug == RecordBug::RefusedPutStored && moment.random.one_in(4) {
                self.store(value);
            }
            self.seen.remove(&client);
            let outcome = moment.heard(refused("version-mismatch"));
            return Observation::RecordPut { key, expected, value, outcome };
        }
        let before = self.stored.clone();
        let version = self.store(value);
        if self.bug == RecordBug::AcknowledgedWriteLost && moment.random.one_in(8) {
            self.stored = before;
        }
        let outcome = moment.heard(CallOutcome::Done(version.clone()));
        match outcome {
            CallOutcome::Done(_) => drop(self.seen.insert(client, Some(version))),
            _ => {
                self.seen.remove(&client);
                self.to_repeat = self.stored.clone();
            }
        }
        Observation::RecordPut { key, expected, value, outcome }
    }

    fn store(&mut self, value: u64) -> String {
        self.versions += 1;
        let version = format!("v{}", self.versions);
        self.replaced = self.stored.replace(SeenRecord { version: version.clone(), value });
        version
    }

    fn get(&mut self, client: u32, moment: &mut Moment) -> Observation {
        let stale = self.bug == RecordBug::StaleRead && moment.random.one_in(6);
        let missing = self.bug == RecordBug::MissingWhileStored && moment.random.one_in(8);
        let found = match () {
            () if missing => None,
            () if stale && self.replaced.is_some() => self.replaced.clone(),
            () => self.stored.clone(),
        };
        let outcome = moment.heard(CallOutcome::Done(found));
        if let CallOutcome::Done(found) = &outcome {
            self.seen.insert(client, found.as_ref().map(|record| record.version.clone()));
        }
        Observation::RecordGet { key: "k".to_owned(), outcome }
    }

    fn delete(&mut self, client: u32, expected: String, moment: &mut Moment) -> Observation {
        self.seen.remove(&client);
        let current = self.stored.as_ref().map(|record| record.version.clone());
        let ignored = self.bug == RecordBug::DeleteIgnoresVersion && current.is_some();
        let fits = current.as_ref() == Some(&expected) || ignored;
        if fits {
            self.stored = None;
            if self.bug == RecordBug::VersionReused {
                self.versions = 0;
            }
        }
        let outcome = if fits { CallOutcome::Done(()) } else { refused("version-mismatch") };
        Observation::RecordDelete { key: "k".to_owned(), expected, outcome: moment.heard(outcome) }
    }
}

impl Model for RecordModel {
    fn step(&mut self, client: u32, moment: &mut Moment) -> Option<Observation> {
        if self.bug == RecordBug::LateRetryUndoes
            && moment.random.one_in(10)
            && let Some(record) = self.to_repeat.take()
        {
            self.stored = Some(record);
        }
        let seen = self.seen.get(&client).cloned();
        Some(match (moment.random.below(10), seen) {
            (0..4, _) | (_, None) => self.get(client, moment),
            (4, Some(Some(version))) => self.delete(client, version, moment),
            (_, Some(expected)) => self.put(client, expected, moment),
        })
    }
}

fn history(bug: RecordBug, seed: u64) -> Vec<HistoryEntry> {
    let mut model = RecordModel {
        bug,
        stored: None,
        replaced: None,
        versions: 0,
        values: 0,
        seen: HashMap::new(),
        to_repeat: None,
    };
    simulate(&mut model, 5, 600, seed)
}

#[test]
fn torture_checker_accepts_right_records() {
    accepts(|seed| history(RecordBug::None, seed));
}

#[test]
fn torture_checker_finds_planted_record_bugs() {
    for (bug, complaint) in [
        (RecordBug::PutIgnoresVersion, ""),
        (RecordBug::AcknowledgedWriteLost, ""),
        (RecordBug::StaleRead, "saw or changed version"),
        (RecordBug::RefusedPutStored, "a refused put"),
        (RecordBug::DeleteIgnoresVersion, ""),
        (RecordBug::VersionReused, "has two values"),
        (RecordBug::LateRetryUndoes, ""),
        (RecordBug::MissingWhileStored, "there is no record"),
        (RecordBug::RefusedForNothing, "although its version was stored"),
        (RecordBug::CreateRefusedForNothing, "although there was no record"),
    ] {
        finds(&format!("{bug:?}"), complaint, |seed| history(bug, seed));
    }
}
