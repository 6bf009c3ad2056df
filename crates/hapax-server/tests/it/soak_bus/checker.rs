//! The record of all publishers and clients of a soak run, and a check of it.

use std::collections::{BTreeMap, HashMap};
use std::str::FromStr;

/// The position of an entry: epoch first, so that positions sort across epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct At {
    pub(crate) epoch: u64,
    pub(crate) offset: u64,
}

impl FromStr for At {
    type Err = ();

    fn from_str(id: &str) -> Result<Self, ()> {
        let (epoch, offset) = id.split_once('-').ok_or(())?;
        Ok(Self { epoch: epoch.parse().map_err(drop)?, offset: offset.parse().map_err(drop)? })
    }
}

/// The producer's name for an event.
pub(crate) type Name = (String, u64);

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// The answers to the publishers, in no order.
    pub(crate) acknowledged: Vec<(Name, At)>,
    /// The highest seq that an observer saw as the job's state, in the order seen.
    pub(crate) states: Vec<(At, u64)>,
    /// The frames of each client, in the order seen, over all its connections.
    pub(crate) clients: Vec<Vec<Saw>>,
}

/// A frame that a client saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    Event(Name, At),
    Gap,
    Snapshot(At),
    /// The stream ended after the final event.
    End,
}

/// Whether the store may have lost acknowledged entries in a failover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Losses {
    Never,
    WithNewEpoch,
}

pub(crate) fn violations(history: &History, losses: Losses) -> Vec<String> {
    let mut wrong = Vec::new();
    acknowledgements(history, losses, &mut wrong);
    states(history, &mut wrong);
    for (client, saw) in history.clients.iter().enumerate() {
        let mut found = Vec::new();
        order(saw, losses, &mut found);
        completeness(history, saw, &mut found);
        wrong.extend(found.into_iter().map(|what| format!("client {client}: {what}")));
    }
    wrong
}

/// One position per event and one event per position, without holes.
fn acknowledgements(history: &History, losses: Losses, wrong: &mut Vec<String>) {
    let mut places: HashMap<&Name, At> = HashMap::new();
    let mut events: BTreeMap<At, &Name> = BTreeMap::new();
    for (name, at) in &history.acknowledged {
        let moved = places.insert(name, *at).is_some_and(|before| before != *at);
        if moved && losses == Losses::Never {
            wrong.push(format!("{name:?} was acknowledged at two places"));
        }
        if events.insert(*at, name).is_some_and(|before| before != name) {
            wrong.push(format!("two events were acknowledged at {at:?}"));
        }
    }
    let offsets = || events.keys().map(|at| at.offset);
    if losses == Losses::Never && !offsets().eq(1..=events.len() as u64) {
        wrong.push("the acknowledged offsets have holes, or begin elsewhere than at 1".to_owned());
    }
}

fn states(history: &History, wrong: &mut Vec<String>) {
    for pair in history.states.windows(2) {
        let ((before, high), (after, low)) = (pair[0], pair[1]);
        if before.epoch == after.epoch && (low < high || after.offset < before.offset) {
            wrong.push(format!("the state went back from {high} to {low}"));
        }
    }
}

/// Offset after offset, but for an explicit gap, which needs a loss.
fn order(saw: &[Saw], losses: Losses, wrong: &mut Vec<String>) {
    let mut last: Option<At> = None;
    let mut gap = false;
    for one in saw {
        match one {
            Saw::Event(name, at) => {
                let expected = last.map_or(1, |last| last.offset + 1);
                if at.offset != expected {
                    wrong.push(format!("{name:?} came at {at:?}, expected offset {expected}"));
                }
                if last.is_some_and(|last| at.epoch < last.epoch) {
                    wrong.push(format!("{at:?} is of an epoch before the last one"));
                }
                last = Some(*at);
            }
            Saw::Gap => {
                // A job that was lost as a whole begins anew, without a snapshot.
                (gap, last) = (true, None);
                if losses == Losses::Never {
                    wrong.push("a gap, although nothing was lost".to_owned());
                }
            }
            Saw::Snapshot(at) if gap => last = Some(*at),
            Saw::Snapshot(_) => wrong.push("a snapshot without a gap".to_owned()),
            Saw::End => {}
        }
    }
    if saw.last() != Some(&Saw::End) {
        wrong.push("the stream never ended".to_owned());
    }
}

/// Every acknowledged event was seen at its position; after an explicit gap, only those whose
/// position the current epoch still has.
fn completeness(history: &History, saw: &[Saw], wrong: &mut Vec<String>) {
    let mut seen: HashMap<&Name, At> = HashMap::new();
    for one in saw {
        if let Saw::Event(name, at) = one
            && seen.insert(name, *at).is_some()
            && !saw.contains(&Saw::Gap)
        {
            wrong.push(format!("{name:?} came twice"));
        }
    }
    let last_epoch = seen.values().map(|at| at.epoch).max();
    for (name, at) in &history.acknowledged {
        match seen.get(name) {
            Some(place) if place == at => {}
            Some(_) if saw.contains(&Saw::Gap) => {}
            Some(place) => wrong.push(format!("{name:?} came at {place:?}, not at {at:?}")),
            // Acknowledged in an epoch whose end was lost: this client got a gap.
            None if saw.contains(&Saw::Gap) && Some(at.epoch) < last_epoch => {}
            None => wrong.push(format!("{name:?} was acknowledged at {at:?} and never came")),
        }
    }
}
