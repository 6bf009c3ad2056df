//! Events: an acknowledged event has one place, and every follower gets it once, in order. Nothing is lost silently.
//!
//! Most stores of a run acknowledge what they have written to disk, so there a gap is wrong: nothing may be lost. A failover to
//! a synchronous standby loses nothing and may say that it did. A failover that loses events must say so.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, LogPosition, Observation, SeenFrame};

type EventName<'a> = (&'a str, u64);
/// The acknowledged places of an event, with the time; more than one only after a loss.
type Places<'a> = HashMap<EventName<'a>, Vec<(LogPosition, u64)>>;

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
    check_identity(entries, findings);
    let mut lost = HashSet::new();
    for (client, frames) in &followers {
        check_sequence(*client, frames, &sent, findings);
        check_completeness(*client, frames, &places, &mut lost, findings);
    }
    if !lost.is_empty() {
        *findings.lost.entry("events").or_default() += lost.len();
    }
}

/// Each event has one place, unless a failover has lost it and it was published again.
fn acknowledged<'a>(entries: &[&'a HistoryEntry], findings: &mut KeyFindings<'_>) -> Places<'a> {
    let mut places = Places::new();
    for entry in entries {
        let Observation::Publish { stage, seq, outcome: CallOutcome::Done(at), .. } = &entry.what
        else {
            continue;
        };
        let name = (stage.as_str(), *seq);
        let before = places.entry(name).or_default();
        if before.iter().any(|(place, _)| place == at) {
            continue;
        }
        let may_differ =
            |place: &LogPosition| findings.store.loses_at_failover() && place.epoch != at.epoch;
        if let Some((place, _)) = before.iter().find(|(place, _)| !may_differ(place)) {
            let what = format!("{name:?} was acknowledged at {place:?} and at {at:?}");
            findings.report(entry.to, what);
        }
        before.push((*at, entry.to));
    }
    places
}

/// A place has one event, for publishers and followers alike.
fn check_identity(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut events: BTreeMap<LogPosition, EventName<'_>> = BTreeMap::new();
    for entry in entries {
        let (at, name) = match &entry.what {
            Observation::Publish { stage, seq, outcome: CallOutcome::Done(at), .. } => {
                (*at, (stage.as_str(), *seq))
            }
            Observation::Followed { frame: SeenFrame::Event(stage, seq, at), .. } => {
                (*at, (stage.as_str(), *seq))
            }
            _ => continue,
        };
        if let Some(other) = events.insert(at, name)
            && other != name
        {
            findings.report(entry.to, format!("at {at:?} are two events, {other:?} and {name:?}"));
        }
    }
}

/// Offset after offset, over all connections of the follower, and only events that were published.
fn check_sequence(
    client: u32,
    frames: &[(&HistoryEntry, &SeenFrame)],
    sent: &HashSet<EventName<'_>>,
    findings: &mut KeyFindings<'_>,
) {
    let (loses, may_gap) = (findings.store.loses_at_failover(), findings.store.has_failover());
    // After a gap the log goes on behind its snapshot, or anew where the job is gone.
    let (mut last, mut after_gap): (Option<LogPosition>, bool) = (None, false);
    let mut before_gap = None;
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
                if !after_gap && last.is_some_and(|last| at.epoch < last.epoch) {
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
                (last, after_gap) = (Some(*at), false);
            }
            SeenFrame::Gap | SeenFrame::Snapshot(_) if !may_gap => {
                let what = format!("follower {client} got a gap although the store loses nothing");
                findings.report(entry.to, what);
                last = None;
            }
            SeenFrame::Gap => {
                before_gap = last;
                (last, after_gap) = (None, true);
                if loses {
                    // What was lost may have been published again.
                    seen.clear();
                }
            }
            SeenFrame::Snapshot(at) => {
                if !after_gap {
                    let what = format!("follower {client} got a snapshot without a gap");
                    findings.report(entry.to, what);
                }
                last = Some(*at);
            }
            // A node that still reads from a demoted master goes on there.
            SeenFrame::CutBehindGap => (last, after_gap) = (before_gap, false),
            SeenFrame::Start => {}
            SeenFrame::End => ended = true,
        }
    }
    if !ended && let Some((entry, _)) = frames.last() {
        findings.report(entry.to, format!("follower {client} never saw the end"));
    }
}

/// A follower that saw the end has seen every acknowledged event at its place, or was told that the log has another history
/// there.
fn check_completeness<'a>(
    client: u32,
    frames: &[(&HistoryEntry, &SeenFrame)],
    places: &Places<'a>,
    lost: &mut HashSet<(EventName<'a>, LogPosition)>,
    findings: &mut KeyFindings<'_>,
) {
    let mut seen: HashMap<EventName<'_>, Vec<LogPosition>> = HashMap::new();
    // Where the log went on after each gap, and where it began if nothing was seen before.
    let mut continued: Vec<LogPosition> = Vec::new();
    let mut after_gap = true;
    for (_, frame) in frames {
        match frame {
            SeenFrame::Event(stage, seq, at) => {
                seen.entry((stage.as_str(), *seq)).or_default().push(*at);
                if after_gap && (!continued.is_empty() || at.offset == 1) {
                    continued.push(*at);
                }
                after_gap = false;
            }
            SeenFrame::Gap => {
                after_gap = true;
                // Whatever comes next counts, even if nothing was seen before.
                continued.push(LogPosition { epoch: 0, offset: 0 });
            }
            SeenFrame::CutBehindGap => after_gap = false,
            _ => {}
        }
    }
    let loses = findings.store.loses_at_failover();
    let last_epoch = frames.iter().rev().find_map(|(_, frame)| match frame {
        SeenFrame::Event(_, _, at) => Some(at.epoch),
        _ => None,
    });
    for (name, (at, when)) in
        places.iter().flat_map(|(name, all)| all.iter().map(move |place| (name, place)))
    {
        let found = seen.get(name);
        if found.is_some_and(|found| found.contains(at)) {
            continue;
        }
        // A follower that saw the end does not come back after a failover that lost it.
        if loses && last_epoch.is_some_and(|last| last < at.epoch) {
            continue;
        }
        let was_told = |next: &LogPosition| next.epoch > at.epoch && next.offset <= at.offset;
        if loses && continued.iter().any(was_told) {
            lost.insert((*name, *at));
            continue;
        }
        let what = match found.and_then(|found| found.first()) {
            Some(place) => {
                format!("follower {client} got {name:?} at {place:?}, acknowledged was {at:?}")
            }
            None => format!("follower {client} never got {name:?}, acknowledged at {at:?}"),
        };
        findings.report(*when, what);
    }
}
