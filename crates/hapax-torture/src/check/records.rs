//! Records: every key is a linearizable register under compare-and-put.
//!
//! A put names the version that it replaces, so the versions of a key form a chain, whose order needs no search. A history
//! is linearizable if and only if no call ended before another call began that comes before it in the chain. A delete
//! ends a chain and a put in place of nothing begins the next one.

use std::collections::HashMap;

use super::{KeyFindings, latest_end};
use crate::history::{CallOutcome, HistoryEntry, Observation};

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
    /// Deletes of it that were done, or may have been.
    deletes: Vec<&'a HistoryEntry>,
    /// When the first put over it was sent whose end is unknown: it may have been stored, and nobody saw it.
    unseen_put_from: Option<u64>,
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
    let Some(chains) = link(&mut lives, findings) else { return };
    let ordered = order(&lives, chains, findings);
    check_real_time(&lives, &ordered, findings);
    check_refusals(entries, &lives, &ordered, findings);
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
        match &entry.what {
            Observation::RecordDelete { expected, outcome, .. } if !outcome.is_refused() => {
                if let Some(life) = lives.get_mut(expected.as_str()) {
                    life.deletes.push(entry);
                }
            }
            Observation::RecordPut { expected: Some(expected), .. } if entry.what.is_unknown() => {
                if let Some(life) = lives.get_mut(expected.as_str()) {
                    life.unseen_put_from.get_or_insert(entry.from);
                }
            }
            _ => {}
        }
    }
    lives
}

/// Connects each version with the one that it replaced; the first version of each chain.
fn link<'a>(lives: &mut Lives<'a>, findings: &mut KeyFindings<'_>) -> Option<Vec<&'a str>> {
    let mut first = Vec::new();
    let mut replacements = Vec::new();
    for (version, life) in &*lives {
        let put = life.put?;
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
        if let Some(delete) = life.deletes.iter().find(|delete| !delete.what.is_unknown()) {
            let what = format!("version {expected} was deleted and replaced by {version}");
            findings.report(delete.to, what);
            return None;
        }
        // It was replaced, so a delete whose end is unknown was not done.
        life.deletes.clear();
    }
    Some(first)
}

/// All versions in the order in which they were stored. A record can be created again only after a delete, so all but
/// the last chain must end in one.
fn order<'a>(
    lives: &Lives<'a>,
    first: Vec<&'a str>,
    findings: &mut KeyFindings<'_>,
) -> Vec<&'a str> {
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
        let calls = chain.iter().flat_map(|version| calls_of(&lives[version]));
        calls.map(latest_end).min()
    });
    for pair in chains.windows(2) {
        let last = pair[0][pair[0].len() - 1];
        if lives[last].deletes.is_empty()
            && let Some(put) = lives[pair[1][0]].put
        {
            let what = format!("version {} was created although {last} was stored", pair[1][0]);
            findings.report(put.to, what);
        }
    }
    chains.concat()
}

fn calls_of<'a>(life: &VersionLife<'a>) -> impl Iterator<Item = &'a HistoryEntry> {
    life.put.into_iter().chain(life.reads.clone())
}

/// No call may have ended before one began that comes before it in the order of versions.
fn check_real_time(lives: &Lives<'_>, ordered: &[&str], findings: &mut KeyFindings<'_>) {
    // Of all calls so far, the one that began last.
    let mut latest: Option<(&HistoryEntry, &str)> = None;
    for version in ordered {
        let life = &lives[version];
        for call in calls_of(life) {
            check_after(call, latest, &format!("version {version} was known"), findings);
        }
        latest = latest_of(latest, calls_of(life), version);
        let deletes = life.deletes.iter().filter(|delete| !delete.what.is_unknown());
        for delete in deletes.clone() {
            check_after(delete, latest, &format!("version {version} was deleted"), findings);
        }
        latest = latest_of(latest, deletes.copied(), version);
    }
    for (version, life) in lives {
        let begun = life.put.map_or(0, |put| put.from);
        for early in life.reads.iter().filter(|read| read.to < begun) {
            findings
                .report(early.to, format!("version {version} was read before its put was sent"));
        }
        let known = life.deletes.iter().filter(|delete| !delete.what.is_unknown());
        if let Some(second) = known.clone().nth(1) {
            findings.report(second.to, format!("version {version} was deleted twice"));
        }
    }
}

/// Reports a call that began after a later one in the order of versions had ended.
fn check_after(
    call: &HistoryEntry,
    latest: Option<(&HistoryEntry, &str)>,
    known: &str,
    findings: &mut KeyFindings<'_>,
) {
    if let Some((older, version)) = latest
        && latest_end(call) < older.from
    {
        let what =
            format!("client {} saw or changed version {version} after {known}", older.client);
        findings.report(older.to, what);
    }
}

fn latest_of<'a>(
    latest: Option<(&'a HistoryEntry, &'a str)>,
    calls: impl Iterator<Item = &'a HistoryEntry>,
    version: &'a str,
) -> Option<(&'a HistoryEntry, &'a str)> {
    let calls = calls.map(|call| (call, version));
    latest.into_iter().chain(calls).max_by_key(|(call, _)| call.from)
}

/// From when and until when a version was surely stored.
struct SureLife {
    from: u64,
    until: u64,
    /// Until when a record was surely stored, of this version or of one that replaced it.
    chain_until: u64,
}

fn sure_lives<'a>(lives: &Lives<'a>, ordered: &[&'a str]) -> HashMap<&'a str, SureLife> {
    let mut sure = HashMap::new();
    let (mut known_by, mut chain_until) = (u64::MAX, u64::MAX);
    for (place, version) in ordered.iter().enumerate().rev() {
        let life = &lives[version];
        let ends = calls_of(life).map(latest_end);
        known_by = ends.chain([known_by]).min().unwrap_or(known_by);
        let deleted = life.deletes.iter().map(|delete| delete.from).min();
        let until = if life.replaced_by.is_empty() {
            chain_until = deleted.unwrap_or(u64::MAX);
            chain_until.min(life.unseen_put_from.unwrap_or(u64::MAX))
        } else {
            ordered.get(place + 1).and_then(|next| lives[next].put).map_or(0, |put| put.from)
        };
        sure.insert(*version, SureLife { from: known_by, until, chain_until });
    }
    sure
}

/// A refusal, and an answer that there is no record, must fit to some moment of the call.
fn check_refusals(
    entries: &[&HistoryEntry],
    lives: &Lives<'_>,
    ordered: &[&str],
    findings: &mut KeyFindings<'_>,
) {
    let sure = sure_lives(lives, ordered);
    let chain_starts: Vec<&SureLife> = ordered
        .iter()
        .filter(|version| replaces_nothing(&lives[*version]))
        .map(|version| &sure[version])
        .collect();
    for entry in entries {
        match &entry.what {
            Observation::RecordPut { expected: Some(expected), outcome, .. }
                if outcome.is_refused() =>
            {
                check_refusal(entry, sure.get(expected.as_str()), findings);
            }
            Observation::RecordDelete { expected, outcome, .. } if outcome.is_refused() => {
                check_refusal(entry, sure.get(expected.as_str()), findings);
            }
            Observation::RecordGet { outcome: CallOutcome::Done(None), .. } => {
                let stored =
                    |life: &&SureLife| life.from < entry.from && entry.to < life.chain_until;
                if chain_starts.iter().copied().any(|life| stored(&life)) {
                    let what = format!("client {} was told that there is no record", entry.client);
                    findings.report(entry.to, what);
                }
            }
            _ => {}
        }
    }
}

fn replaces_nothing(life: &VersionLife<'_>) -> bool {
    life.put.is_some_and(|put| matches!(&put.what, Observation::RecordPut { expected: None, .. }))
}

fn check_refusal(entry: &HistoryEntry, sure: Option<&SureLife>, findings: &mut KeyFindings<'_>) {
    if let Some(life) = sure
        && life.from < entry.from
        && entry.to < life.until
    {
        let what = format!("client {} was refused although its version was stored", entry.client);
        findings.report(entry.to, what);
    }
}
