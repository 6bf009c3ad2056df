//! Once in a caller's transaction: an acknowledged key has one effect, the one that its answer names, and every answer is
//! the same.

use std::collections::HashMap;

use super::KeyFindings;
use crate::history::{CallOutcome, HistoryEntry, Observation};

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let rows: Vec<u64> = entries
        .iter()
        .filter_map(|entry| match entry.what {
            Observation::TransactionEffect { effect, .. } => Some(effect),
            _ => None,
        })
        .collect();
    let end = entries.iter().map(|entry| entry.to).max().unwrap_or(0);
    if rows.len() > 1 {
        findings.report(end, format!("it has {} effects: {rows:?}", rows.len()));
    }
    let mut attempts: HashMap<u64, &HistoryEntry> = HashMap::new();
    let mut first: Option<(&str, u64)> = None;
    let mut stored_by = u64::MAX;
    for entry in entries {
        let Observation::Transaction { effect, outcome, .. } = &entry.what else { continue };
        if let Some(effect) = effect {
            attempts.insert(*effect, entry);
        }
        let CallOutcome::Done(answer) = outcome else { continue };
        stored_by = stored_by.min(entry.to);
        match first {
            Some((said, _)) if said != answer => {
                let what = format!("an answer is {answer:?}, another one is {said:?}");
                findings.report_loss("transactions (other answer)", entry.to, what);
            }
            Some(_) => {}
            None => {
                first = Some((answer, entry.to));
                if !rows.iter().any(|effect| *answer == format!("effect {effect}")) {
                    let what = format!("{answer:?} was acknowledged, and there is no such effect");
                    findings.report_loss("transactions", entry.to, what);
                }
            }
        }
    }
    for effect in rows {
        match attempts.get(&effect).map(|entry| (entry.to, &entry.what)) {
            None => findings.report(end, format!("effect {effect} is nobody's")),
            Some((at, Observation::Transaction { outcome: CallOutcome::Refused(why), .. })) => {
                let what = format!("effect {effect} is there although it was rolled back: {why}");
                findings.report(at, what);
            }
            Some(_) => {}
        }
    }
    // An answer that is stored stays the answer.
    for entry in entries.iter().filter(|entry| stored_by < entry.from) {
        if let Observation::Transaction { outcome: CallOutcome::Refused(why), .. } = &entry.what
            && ["in-progress", "unknown", "on purpose"].contains(&why.as_str())
        {
            let told = if why == "on purpose" { "granted" } else { why };
            let what =
                format!("client {} was told {told} after the answer was stored", entry.client);
            findings.report_loss("transactions (no answer)", entry.to, what);
        }
    }
}
