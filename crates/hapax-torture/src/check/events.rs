//! Events: an acknowledged event has one place, and every follower gets it once, in order. Nothing is lost silently.
//!
//! The stores of a run acknowledge what they have written to disk, so a gap is wrong here: nothing may be lost.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, LogPosition, Observation, SeenFrame};

type EventName<'a> = (&'a str, u64);

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let places = acknowledged(entries, findings);
    let sent: HashSet<EventName<'_>> = entries
        .iter()
        .filter_map(|entry| match &entry.what {
            Observation::Publish { stage, seq, .. } => Some((stage.as_str(), *seq)),
            _ => None,
        })
        .collect();
    let mut followers: BTreeMap<u32, Vec<(&HistoryEntry, &SeenFrame)>> = BTreeMap::new();
    for entry in entries {
        if let Observation::Followed { frame, .. } = &entry.what {
            followers.entry(entry.client).or_default().push((entry, frame));
        }
    }
    for (client, frames) in &followers {
        check_sequence(*client, frames, &sent, findings);
        check_completeness(*client, frames, &places, findings);
    }
}

/// Each event has one place, each place one event, and the acknowledged places have no holes but where the end of a
/// publication is unknown.
fn acknowledged<'a>(
    entries: &[&'a HistoryEntry],
    findings: &mut KeyFindings<'_>,
) -> HashMap<EventName<'a>, (LogPosition, u64)> {
    let mut places: HashMap<EventName<'a>, (LogPosition, u64)> = HashMap::new();
    let mut events: BTreeMap<LogPosition, EventName<'a>> = BTreeMap::new();
    for entry in entries {
        let Observation::Publish { stage, seq, outcome: CallOutcome::Done(at), .. } = &entry.what
        else {
            continue;
        };
        let name = (stage.as_str(), *seq);
        let before = places.entry(name).or_insert((*at, entry.to));
        if before.0 != *at {
            let what = format!("{name:?} was acknowledged at {:?} and at {at:?}", before.0);
            findings.report(entry.to, what);
        }
        if events.insert(*at, name).is_some_and(|other| other != name) {
            findings.report(entry.to, format!("two events were acknowledged at {at:?}"));
        }
    }
    places
}

/// Offset after offset, over all connections of the follower, and only events that were published.
fn check_sequence(
    client: u32,
    frames: &[(&HistoryEntry, &SeenFrame)],
    sent: &HashSet<EventName<'_>>,
    findings: &mut KeyFindings<'_>,
) {
    let mut last: Option<LogPosition> = None;
    let mut seen: HashSet<EventName<'_>> = HashSet::new();
    let mut ended = false;
    for (entry, frame) in frames {
        match frame {
            SeenFrame::Event(stage, seq, at) => {
                let name = (stage.as_str(), *seq);
                let expected = last.map_or(1, |last| last.offset + 1);
                if at.offset != expected {
                    let what = format!(
                        "follower {client} got {name:?} at offset {}, expected {expected}",
                        at.offset
                    );
                    findings.report(entry.to, what);
                }
                if last.is_some_and(|last| at.epoch < last.epoch) {
                    findings.report(
                        entry.to,
                        format!("follower {client} got an event of an earlier epoch"),
                    );
                }
                if !seen.insert(name) {
                    findings.report(entry.to, format!("follower {client} got {name:?} twice"));
                }
                if !sent.contains(&name) {
                    findings.report(
                        entry.to,
                        format!("follower {client} got {name:?}, which nobody sent"),
                    );
                }
                if ended {
                    findings
                        .report(entry.to, format!("follower {client} got {name:?} after the end"));
                }
                last = Some(*at);
            }
            SeenFrame::Gap | SeenFrame::Snapshot(_) => {
                let what = format!("follower {client} got a gap although the store loses nothing");
                findings.report(entry.to, what);
                last = None;
            }
            SeenFrame::Start => {}
            SeenFrame::End => ended = true,
        }
    }
    if !ended && let Some((entry, _)) = frames.last() {
        findings.report(entry.to, format!("follower {client} never saw the end"));
    }
}

/// A follower that saw the end has seen every acknowledged event at its place.
fn check_completeness(
    client: u32,
    frames: &[(&HistoryEntry, &SeenFrame)],
    places: &HashMap<EventName<'_>, (LogPosition, u64)>,
    findings: &mut KeyFindings<'_>,
) {
    let seen: HashMap<EventName<'_>, LogPosition> = frames
        .iter()
        .filter_map(|(_, frame)| match frame {
            SeenFrame::Event(stage, seq, at) => Some(((stage.as_str(), *seq), *at)),
            _ => None,
        })
        .collect();
    for (name, (at, when)) in places {
        match seen.get(name) {
            Some(place) if place == at => {}
            Some(place) => {
                let what =
                    format!("follower {client} got {name:?} at {place:?}, acknowledged was {at:?}");
                findings.report(*when, what);
            }
            None => {
                let what = format!("follower {client} never got {name:?}, acknowledged at {at:?}");
                findings.report(*when, what);
            }
        }
    }
}
