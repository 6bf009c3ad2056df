//! The proxy under `refuse`: a key runs at most once, and its answer never changes.

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, Observation};

/// A store call takes at most a second in a run, so a settle that fails takes longer than this.
const QUICK: u64 = 900_000;
/// A store may fail for some time after a fault has ended.
const AFTERMATH: u64 = 5_000_000;

/// When the store, or the way to it, was disturbed.
pub(super) fn store_faults(history: &[HistoryEntry]) -> Vec<(u64, u64)> {
    let faults = history.iter().filter(
        |entry| matches!(&entry.what, Observation::Fault { kind, .. } if kind.contains("store") || kind == "power-cut"),
    );
    faults.map(|entry| (entry.from, entry.to)).collect()
}

pub(super) fn check(
    entries: &[&HistoryEntry],
    store_faults: &[(u64, u64)],
    findings: &mut KeyFindings<'_>,
) {
    let mut effects =
        entries.iter().filter(|entry| matches!(entry.what, Observation::UpstreamEffect { .. }));
    let first_effect = effects.next();
    if let Some(second) = effects.next() {
        findings.report(second.to, "the upstream ran it twice".to_owned());
    }
    let mut said: Option<&str> = None;
    let mut stored_by = u64::MAX;
    for entry in entries {
        let Observation::ProxyRequest { outcome: CallOutcome::Done(answer), .. } = &entry.what
        else {
            continue;
        };
        if answer.replayed || is_surely_stored(entry, store_faults) {
            stored_by = stored_by.min(entry.to);
        }
        match said {
            Some(first) if first != answer.body => {
                let what = format!("an answer is {:?}, another one is {first:?}", answer.body);
                findings.report(entry.to, what);
            }
            Some(_) => {}
            None => said = Some(&answer.body),
        }
        if first_effect.is_none_or(|effect| effect.from > entry.to) {
            findings
                .report(entry.to, "it was answered, and the upstream had not run it".to_owned());
        }
    }
    for entry in entries.iter().filter(|entry| stored_by < entry.from) {
        if let Observation::ProxyRequest { outcome: CallOutcome::Refused(code), .. } = &entry.what
            && ["in-progress", "outcome-unknown"].contains(&code.as_str())
        {
            let what = format!("client {} was told {code} after it was answered", entry.client);
            findings.report(entry.to, what);
        }
    }
}

/// The proxy sends an answer after it is stored, unless the store fails at that moment: the effect has happened.
fn is_surely_stored(entry: &HistoryEntry, store_faults: &[(u64, u64)]) -> bool {
    let disturbed = |(from, to): &(u64, u64)| *from < entry.to && entry.from < to + AFTERMATH;
    entry.to - entry.from < QUICK && !store_faults.iter().any(disturbed)
}
