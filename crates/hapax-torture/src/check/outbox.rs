//! Outbox, relay and inbox: a message is sent if and only if its transaction committed, in order for each key, and behind the
//! inbox it has one effect.

use std::collections::HashMap;

use super::{KeyFindings, Violation};
use crate::history::{CallOutcome, HistoryEntry, Observation};

/// A transaction with a message, and what became of the message.
struct SentRow<'a> {
    commit: &'a HistoryEntry,
    key: &'a str,
    first_delivery: Option<u64>,
}

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut rows: HashMap<&str, SentRow<'_>> = HashMap::new();
    for entry in entries {
        if let Observation::OutboxCommit { id, key, .. } = &entry.what {
            rows.insert(id, SentRow { commit: entry, key, first_delivery: None });
        }
    }
    let mut report = |id: &str, at: u64, what: String| {
        let (workload, key) = (findings.workload, id.to_owned());
        findings.found.push(Violation { workload, key, what, at });
    };
    let mut effects: HashMap<&str, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let (id, what) = match &entry.what {
            Observation::Delivery { id } => (id.as_str(), "sent"),
            Observation::InboxEffect { id } => (id.as_str(), "an effect"),
            _ => continue,
        };
        match rows.get_mut(id) {
            None => report(id, entry.to, format!("a message of nobody's was {what}")),
            Some(row) => {
                if is_rolled_back(row) {
                    report(id, entry.to, format!("a message was {what}, but was rolled back"));
                }
                if what == "sent" {
                    row.first_delivery.get_or_insert(place as u64);
                }
            }
        }
        if what != "sent" {
            *effects.entry(id).or_default() += 1;
        }
    }
    for (id, row) in &rows {
        let times = effects.get(id).copied().unwrap_or(0);
        if times > 1 {
            report(id, row.commit.to, format!("its effect happened {times} times"));
        }
        if is_committed(row) && row.first_delivery.is_none() {
            report(id, row.commit.to, "it was committed and never sent".to_owned());
        } else if is_committed(row) && times == 0 {
            report(id, row.commit.to, "it was committed, and its effect never happened".to_owned());
        }
    }
    check_order(&rows, &mut report);
}

fn is_committed(row: &SentRow<'_>) -> bool {
    matches!(&row.commit.what, Observation::OutboxCommit { outcome: CallOutcome::Done(()), .. })
}

fn is_rolled_back(row: &SentRow<'_>) -> bool {
    matches!(&row.commit.what, Observation::OutboxCommit { outcome: CallOutcome::Refused(_), .. })
}

/// First deliveries of a key are in commit order, where the transactions did not overlap.
fn check_order(rows: &HashMap<&str, SentRow<'_>>, report: &mut impl FnMut(&str, u64, String)) {
    let mut keys: HashMap<&str, Vec<(&str, &SentRow<'_>)>> = HashMap::new();
    for (id, row) in rows.iter().filter(|(_, row)| is_committed(row)) {
        keys.entry(row.key).or_default().push((id, row));
    }
    for (key, mut rows) in keys {
        rows.sort_by_key(|(_, row)| row.first_delivery);
        // From the back: of all rows that were sent later, the one whose transaction ended first.
        let mut sent_later: Option<(&str, u64)> = None;
        for (id, row) in rows.iter().rev().filter(|(_, row)| row.first_delivery.is_some()) {
            if let Some((other, end)) = sent_later
                && end < row.commit.from
            {
                let what = format!(
                    "it was sent before {other} of the same key {key}, which was committed before"
                );
                report(id, row.commit.to, what);
            }
            if sent_later.is_none_or(|(_, end)| row.commit.to < end) {
                sent_later = Some((id, row.commit.to));
            }
        }
    }
}
