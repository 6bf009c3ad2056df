//! Compares the checker of records with an exhaustive search for an order of the calls, on small random histories.

use std::collections::{HashMap, HashSet};

use hapax_torture::history::{CallOutcome, HistoryEntry, Observation, SeenRecord};
use hapax_torture::{SeededRandom, check_history};

use crate::simulation::refused;

const HISTORIES: u64 = 20_000;
const CLIENTS: usize = 3;

/// A record that is read and written by clients whose calls overlap as much as they can.
struct RandomRecord {
    random: SeededRandom,
    /// Whether it gives wrong answers now and then.
    lies: bool,
    stored: Option<SeenRecord>,
    /// All that was ever stored, or that a put was about.
    ever: Vec<SeenRecord>,
    /// The versions that clients know, the newest last; `None` for no record.
    known: Vec<Option<String>>,
    /// Calls whose answer was lost before they were done.
    late: Vec<Observation>,
    values: u64,
}

impl RandomRecord {
    /// A call whose end is not known yet, with a version that somebody has seen.
    fn begin(&mut self) -> Observation {
        let key = "k".to_owned();
        let newest = self.random.below(3).min(self.known.len() as u64 - 1);
        let expected = self.known[self.known.len() - 1 - newest as usize].clone();
        let nobody_knows = || "cut".to_owned();
        match (self.random.below(10), expected) {
            (0..3, _) => {
                Observation::RecordGet { key, outcome: CallOutcome::Unknown(nobody_knows()) }
            }
            (3..6, Some(expected)) => Observation::RecordDelete {
                key,
                expected,
                outcome: CallOutcome::Unknown(nobody_knows()),
            },
            (_, expected) => {
                self.values += 1;
                let (value, outcome) = (self.values, CallOutcome::Unknown(nobody_knows()));
                Observation::RecordPut { key, expected, value, outcome }
            }
        }
    }

    /// Does what the call asks for, and notes the answer in it.
    fn execute(&mut self, call: &mut Observation) {
        let lies = self.lies && self.random.one_in(4);
        let current = self.stored.as_ref().map(|record| record.version.clone());
        // Whether a write is done, and whether its client is told so.
        let mut decide = |fits: bool| {
            if lies { (self.random.one_in(2), self.random.one_in(2)) } else { (fits, fits) }
        };
        match call {
            Observation::RecordPut { expected, value, outcome, .. } => {
                let (is_done, is_told) = decide(current == *expected);
                let version = format!("v{}", self.ever.len());
                let record = SeenRecord { version: version.clone(), value: *value };
                *outcome = if is_told { CallOutcome::Done(version) } else { refused("mismatch") };
                self.ever.push(record.clone());
                if is_done {
                    self.stored = Some(record);
                }
            }
            Observation::RecordDelete { expected, outcome, .. } => {
                let (is_done, is_told) = decide(current.as_ref() == Some(expected));
                *outcome = if is_told { CallOutcome::Done(()) } else { refused("mismatch") };
                if is_done {
                    self.stored = None;
                }
            }
            Observation::RecordGet { outcome, .. } => {
                let any = self.random.below(self.ever.len() as u64 + 1) as usize;
                let found = if lies { self.ever.get(any).cloned() } else { self.stored.clone() };
                *outcome = CallOutcome::Done(found);
            }
            _ => {}
        }
    }

    fn learn(&mut self, call: &Observation) {
        match call {
            Observation::RecordPut { outcome: CallOutcome::Done(version), .. } => {
                self.known.push(Some(version.clone()));
            }
            Observation::RecordGet { outcome: CallOutcome::Done(found), .. } => {
                self.known.push(found.as_ref().map(|record| record.version.clone()));
            }
            Observation::RecordDelete { outcome: CallOutcome::Done(()), .. } => {
                self.known.push(None);
            }
            _ => {}
        }
    }
}

fn random_history(seed: u64) -> Vec<HistoryEntry> {
    let mut random = SeededRandom::new(seed, 9);
    let (calls, lies) = (3 + random.below(9), !random.one_in(4));
    let mut record = RandomRecord {
        random,
        lies,
        stored: None,
        ever: Vec::new(),
        known: vec![None],
        late: Vec::new(),
        values: 0,
    };
    let mut history: Vec<HistoryEntry> = Vec::new();
    // The entry of each client's call, and whether it was executed.
    let mut running: [Option<(usize, bool)>; CLIENTS] = [None; CLIENTS];
    for now in 1.. {
        if record.random.one_in(4)
            && let Some(mut late) = record.late.pop()
        {
            record.execute(&mut late);
            if record.lies && record.random.one_in(2) {
                record.late.push(late);
            }
        }
        let client = record.random.below(CLIENTS as u64) as usize;
        match running[client] {
            None if (history.len() as u64) < calls => {
                let what = record.begin();
                running[client] = Some((history.len(), false));
                history.push(HistoryEntry { from: now, to: now, client: client as u32, what });
            }
            None if running.iter().all(Option::is_none) => break,
            None => {}
            // Some answers are lost, before or after the call is done.
            Some((place, false)) if record.random.one_in(8) => {
                record.late.push(history[place].what.clone());
                running[client] = Some((place, true));
            }
            Some((place, false)) => {
                let mut done = history[place].what.clone();
                record.execute(&mut done);
                if !record.random.one_in(8) {
                    history[place].what = done;
                }
                running[client] = Some((place, true));
            }
            Some((place, true)) => {
                history[place].to = now;
                record.learn(&history[place].what);
                running[client] = None;
            }
        }
    }
    history
}

/// Tries all orders of the calls in which no call comes before another one that ended before it began. A call whose end is
/// unknown may be left out.
struct OrderSearch<'a> {
    history: &'a [HistoryEntry],
    values: HashMap<&'a str, u64>,
    /// The calls that were ordered, and the stored value, from where there is no way on.
    failed: HashSet<(u32, Option<u64>)>,
}

impl<'a> OrderSearch<'a> {
    fn finds_order(history: &'a [HistoryEntry]) -> bool {
        let seen = history.iter().filter_map(|entry| match &entry.what {
            Observation::RecordPut { value, outcome: CallOutcome::Done(version), .. } => {
                Some((version.as_str(), *value))
            }
            Observation::RecordGet { outcome: CallOutcome::Done(Some(seen)), .. } => {
                Some((seen.version.as_str(), seen.value))
            }
            _ => None,
        });
        let (mut values, mut versions) = (HashMap::new(), HashMap::new());
        for (version, value) in seen {
            // A version has one value, and a put is stored once.
            if *values.entry(version).or_insert(value) != value
                || *versions.entry(value).or_insert(version) != version
            {
                return false;
            }
        }
        OrderSearch { history, values, failed: HashSet::new() }.goes_on(0, None)
    }

    fn goes_on(&mut self, ordered: u32, stored: Option<u64>) -> bool {
        let history = self.history;
        let rest = || history.iter().enumerate().filter(|(place, _)| ordered & 1 << place == 0);
        let known = || rest().filter(|(_, call)| !call.what.is_unknown());
        let Some(first_end) = known().map(|(_, call)| call.to).min() else { return true };
        if self.failed.contains(&(ordered, stored)) {
            return false;
        }
        let found = rest().filter(|(_, call)| call.from <= first_end).any(|(place, call)| {
            let next = self.apply(&call.what, stored);
            next.is_some_and(|stored| self.goes_on(ordered | 1 << place, stored))
        });
        if !found {
            self.failed.insert((ordered, stored));
        }
        found
    }

    /// The value that is stored after the call; `None` if the call cannot have ended as it did.
    fn apply(&self, call: &Observation, stored: Option<u64>) -> Option<Option<u64>> {
        let (expected, after, is_refused) = match call {
            Observation::RecordGet { outcome: CallOutcome::Done(found), .. } => {
                return (found.as_ref().map(|seen| seen.value) == stored).then_some(stored);
            }
            Observation::RecordPut { expected, value, outcome, .. } => {
                (expected.as_deref(), Some(*value), outcome.is_refused())
            }
            Observation::RecordDelete { expected, outcome, .. } => {
                (Some(expected.as_str()), None, outcome.is_refused())
            }
            _ => return Some(stored),
        };
        let fits = match expected {
            None => stored.is_none(),
            Some(version) => stored.is_some() && self.values.get(version) == stored.as_ref(),
        };
        (fits != is_refused).then_some(if is_refused { stored } else { after })
    }
}

#[test]
fn torture_checker_of_records_agrees_with_a_search() {
    let (mut right, mut wrong, mut unknown) = (0, 0, 0);
    for seed in 0..HISTORIES {
        let history = random_history(seed);
        let violations = check_history(&history);
        let has_order = OrderSearch::finds_order(&history);
        let agree = violations.is_empty() == has_order;
        assert!(agree, "seed {seed}: order {has_order}, {violations:#?}\n{history:#?}");
        *(if has_order { &mut right } else { &mut wrong }) += 1;
        unknown += u64::from(history.iter().any(|entry| entry.what.is_unknown()));
    }
    let counts = [right, wrong, unknown];
    assert!(counts.iter().all(|count| *count > HISTORIES / 5), "right, wrong, unknown: {counts:?}");
}
