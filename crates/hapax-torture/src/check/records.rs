//! Records: every key is a linearizable register under compare-and-put.
//!
//! A put names the version that it replaces, so the versions of a key form chains: a put in place of nothing begins one, and
//! a delete ends it. Whoever names a version has seen it before, so the order of the chains is known, too, and a history is
//! linearizable if and only if there is a moment for every change ([`ChangeTimes`]).
//!
//! A put whose end is unknown and whose value nobody saw may have been the last change: nobody knows its version, so nobody
//! can have replaced or deleted it.

mod change_times;

use std::collections::HashMap;

use super::{KeyFindings, latest_end};
use crate::history::{CallOutcome, HistoryEntry, Observation};
use change_times::ChangeTimes;

const REFUSED: &str = "was refused although its version was stored";
const REFUSED_TO_CREATE: &str = "was refused to create although there was no record";
const MISSING: &str = "was told that there is no record";
/// Stands for the version of a put that nobody saw.
const UNSEEN: &str = "unseen";

/// A version that somebody saw.
#[derive(Default)]
struct VersionLife<'a> {
    value: Option<u64>,
    /// The put that made it.
    put: Option<&'a HistoryEntry>,
    /// Reads that returned it.
    reads: Vec<&'a HistoryEntry>,
    /// The versions that replaced it.
    replaced_by: Vec<&'a str>,
    /// Deletes of it that were done.
    deletes: Vec<&'a HistoryEntry>,
    /// The first delete of it whose end is unknown.
    unknown_delete: Option<&'a HistoryEntry>,
    /// The first put over it whose end is unknown.
    unknown_put: Option<&'a HistoryEntry>,
}

impl<'a> VersionLife<'a> {
    /// The delete that ended it, if one did.
    fn delete(&self) -> Option<&'a HistoryEntry> {
        self.deletes.first().copied().or(self.unknown_delete)
    }
}

type Lives<'a> = HashMap<&'a str, VersionLife<'a>>;

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let lives = collect(entries, findings);
    let mut order = findings.apart();
    check_chains(entries, lives, &mut order);
    if findings.store.loses_at_failover() {
        // A version that was lost is replaced once more, and those after it are not seen again.
        if let Some(first) = order.found.into_iter().next() {
            findings.report_loss("records (history of a key)", first.at, first.what);
        }
    } else {
        findings.found.append(&mut order.found);
    }
}

/// Checks that the calls fit to one order of the versions.
fn check_chains<'a>(
    entries: &[&'a HistoryEntry],
    mut lives: Lives<'a>,
    findings: &mut KeyFindings<'_>,
) {
    let Some(first) = link(&mut lives, findings) else { return };
    let Some(chains) = order(&lives, first, findings) else { return };
    let contradictions = arrange(entries, &lives, &chains, None).contradictions();
    // The last version may also have been replaced by a put that nobody saw.
    let last = chains.last().and_then(|chain| chain.last()).map(|version| &lives[version]);
    let unseen_put = last.filter(|life| life.deletes.is_empty()).and_then(|life| life.unknown_put);
    let fits_unseen_put =
        |put| arrange(entries, &lives, &chains, Some(put)).contradictions().is_empty();
    if !contradictions.is_empty() && unseen_put.is_some_and(fits_unseen_put) {
        return;
    }
    for (at, what) in contradictions {
        findings.report(at, what);
    }
}

/// Gathers what was seen of each version. A version has one value, and a value was written by its own put.
fn collect<'a>(entries: &[&'a HistoryEntry], findings: &mut KeyFindings<'_>) -> Lives<'a> {
    let mut puts: HashMap<u64, &'a HistoryEntry> = HashMap::new();
    for entry in entries {
        if let Observation::RecordPut { value, .. } = &entry.what {
            puts.insert(*value, entry);
        }
    }
    let mut lives: Lives<'a> = HashMap::new();
    for entry in entries {
        let (version, value, is_read) = match &entry.what {
            Observation::RecordGet { outcome: CallOutcome::Done(Some(seen)), .. } => {
                (seen.version.as_str(), seen.value, true)
            }
            Observation::RecordPut { value, outcome: CallOutcome::Done(version), .. } => {
                (version.as_str(), *value, false)
            }
            _ => continue,
        };
        let life = lives.entry(version).or_default();
        if life.value.is_some_and(|before| before != value) {
            findings.report(entry.to, format!("version {version} has two values"));
        }
        life.value = Some(value);
        if is_read {
            life.reads.push(entry);
        }
        match puts.get(&value) {
            None => findings.report(entry.to, format!("a value that nobody wrote: {value}")),
            Some(put) => {
                if let Observation::RecordPut { outcome, .. } = &put.what
                    && outcome.is_refused()
                {
                    findings.report(entry.to, format!("a refused put of {value} was stored"));
                }
                life.put = Some(put);
            }
        }
    }
    for entry in entries {
        let (expected, is_delete) = match &entry.what {
            Observation::RecordDelete { expected, outcome, .. } if !outcome.is_refused() => {
                (expected, true)
            }
            Observation::RecordPut { expected: Some(expected), .. } if entry.what.is_unknown() => {
                (expected, false)
            }
            _ => continue,
        };
        let Some(life) = lives.get_mut(expected.as_str()) else { continue };
        match (is_delete, entry.what.is_unknown()) {
            (true, false) => life.deletes.push(entry),
            (true, true) => drop(life.unknown_delete.get_or_insert(entry)),
            (false, _) => drop(life.unknown_put.get_or_insert(entry)),
        }
    }
    lives
}

/// Connects each version with the one that it replaced; the first version of each chain.
fn link<'a>(lives: &mut Lives<'a>, findings: &mut KeyFindings<'_>) -> Option<Vec<&'a str>> {
    let mut first = Vec::new();
    let mut replacements = Vec::new();
    let mut versions: HashMap<u64, &str> = HashMap::new();
    for (version, life) in &*lives {
        let (put, value) = (life.put?, life.value?);
        if let Some(other) = versions.insert(value, version) {
            let what = format!("one put was stored twice, as versions {version} and {other}");
            findings.report(put.to, what);
            return None;
        }
        if let Some(early) = life.reads.iter().find(|read| read.to < put.from) {
            findings
                .report(early.to, format!("version {version} was read before its put was sent"));
            return None;
        }
        if let Some(second) = life.deletes.get(1) {
            findings.report(second.to, format!("version {version} was deleted twice"));
            return None;
        }
        if let Observation::RecordPut { expected, .. } = &put.what {
            match expected {
                None => first.push(*version),
                Some(expected) => replacements.push((expected.as_str(), *version, put)),
            }
        }
    }
    replacements.sort_by_key(|(_, version, put)| (put.from, *version));
    for (expected, version, put) in replacements {
        let Some(life) = lives.get_mut(expected) else {
            findings.report(put.to, format!("a put replaced version {expected}, which nobody saw"));
            return None;
        };
        life.replaced_by.push(version);
        if life.replaced_by.len() > 1 {
            let versions = life.replaced_by.join(" and ");
            findings
                .report(put.to, format!("version {expected} was replaced twice, by {versions}"));
            return None;
        }
        if let Some(delete) = life.deletes.first() {
            let what = format!("version {expected} was deleted and replaced by {version}");
            findings.report(delete.to, what);
            return None;
        }
    }
    Some(first)
}

/// The chains in the order in which they were stored. A record can be created again only after a delete, so all but the
/// last chain must end in one.
fn order<'a>(
    lives: &Lives<'a>,
    first: Vec<&'a str>,
    findings: &mut KeyFindings<'_>,
) -> Option<Vec<Vec<&'a str>>> {
    let mut chains: Vec<Vec<&'a str>> = Vec::new();
    for start in first {
        let mut chain = vec![start];
        while let Some(next) = lives[chain[chain.len() - 1]].replaced_by.first() {
            chain.push(next);
        }
        chains.push(chain);
    }
    // A version is known by its put's answer or by a read, and whoever deleted it knew it: chains that a delete
    // separates are in the order of the earliest ends of their calls.
    chains.sort_by_key(|chain| {
        let lives = chain.iter().map(|version| &lives[version]);
        let calls = lives.flat_map(|life| life.put.into_iter().chain(life.reads.clone()));
        calls.map(latest_end).min()
    });
    for pair in chains.windows(2) {
        let last = pair[0][pair[0].len() - 1];
        if lives[last].delete().is_none()
            && let Some(put) = lives[pair[1][0]].put
        {
            let what = format!("version {} was created although {last} was stored", pair[1][0]);
            findings.report(put.to, what);
            return None;
        }
    }
    Some(chains)
}

/// All changes, and the answers that say something about the times between them. `unseen_put` replaced the last version.
fn arrange<'a>(
    entries: &[&'a HistoryEntry],
    lives: &Lives<'a>,
    chains: &[Vec<&'a str>],
    unseen_put: Option<&'a HistoryEntry>,
) -> ChangeTimes<'a> {
    let mut times = ChangeTimes::default();
    let mut states: HashMap<&str, usize> = HashMap::new();
    // The first and the last state of each time without a record, and of each time with one.
    let (mut absent, mut stored) = (vec![(0, 0)], Vec::new());
    for (place, chain) in chains.iter().enumerate() {
        let first = times.last_state() + 1;
        for version in chain {
            if let Some(put) = lives[version].put {
                states.insert(version, times.add(put, version));
            }
        }
        let last = chain[chain.len() - 1];
        let unseen_put = unseen_put.filter(|_| place + 1 == chains.len());
        if let Some(put) = unseen_put {
            times.add(put, UNSEEN);
        }
        stored.push((first, times.last_state()));
        if unseen_put.is_none()
            && let Some(delete) = lives[last].delete()
        {
            let state = times.add(delete, last);
            absent.push((state, state));
        }
    }
    let is_absent_at_last = absent.last().is_some_and(|(_, last)| *last == times.last_state());
    if is_absent_at_last && let Some(create) = unseen_create(entries, lives) {
        let state = times.add(create, UNSEEN);
        stored.push((state, state));
    }
    for (version, state) in &states {
        lives[version].reads.iter().for_each(|read| times.see(read, *state, version));
    }
    times.order_limits();
    for entry in entries {
        add_answer(entry, (&states, &absent, &stored), &mut times);
    }
    times
}

/// The first put in place of nothing whose end is unknown and whose value nobody saw.
fn unseen_create<'a>(entries: &[&'a HistoryEntry], lives: &Lives<'a>) -> Option<&'a HistoryEntry> {
    let is_seen = |put: &HistoryEntry| {
        lives.values().any(|life| life.put.is_some_and(|seen| std::ptr::eq(seen, put)))
    };
    let is_create = |entry: &HistoryEntry| {
        entry.what.is_unknown()
            && matches!(entry.what, Observation::RecordPut { expected: None, .. })
    };
    entries.iter().copied().find(|entry| is_create(entry) && !is_seen(entry))
}

type StateRanges = [(usize, usize)];

/// A refusal, and an answer that there is no record, must fit to some moment of the call.
fn add_answer<'a>(
    entry: &'a HistoryEntry,
    (states, absent, stored): (&HashMap<&str, usize>, &StateRanges, &StateRanges),
    times: &mut ChangeTimes<'a>,
) {
    match &entry.what {
        Observation::RecordPut { expected: None, outcome, .. } if outcome.is_refused() => {
            absent.iter().for_each(|range| times.deny(entry, *range, REFUSED_TO_CREATE));
        }
        Observation::RecordPut { expected: Some(expected), outcome, .. }
            if outcome.is_refused() =>
        {
            if let Some(state) = states.get(expected.as_str()) {
                times.deny(entry, (*state, *state), REFUSED);
            }
        }
        Observation::RecordDelete { expected, outcome, .. } if outcome.is_refused() => {
            if let Some(state) = states.get(expected.as_str()) {
                times.deny(entry, (*state, *state), REFUSED);
            }
        }
        Observation::RecordGet { outcome: CallOutcome::Done(None), .. } => {
            stored.iter().for_each(|range| times.deny(entry, *range, MISSING));
        }
        _ => {}
    }
}
