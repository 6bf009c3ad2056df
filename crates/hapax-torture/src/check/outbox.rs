//! Outbox, relay and inbox, with a webhook or a broker between them: a message is sent if and only if its transaction
//! committed, in order for each key, and behind the inbox it has one effect.

use std::collections::HashMap;

use super::{KeyFindings, Violation};
use crate::history::{CallOutcome, HistoryEntry, Observation};

/// A transaction with a message, and what became of the message.
struct SentRow<'a> {
    commit: &'a HistoryEntry,
    outcome: &'a CallOutcome<()>,
    key: &'a str,
    first_delivery: Option<u64>,
}

impl SentRow<'_> {
    fn is_committed(&self) -> bool {
        self.outcome.done().is_some()
    }
}

pub(super) fn check(entries: &[&HistoryEntry], findings: &mut KeyFindings<'_>) {
    let mut rows: HashMap<&str, SentRow<'_>> = HashMap::new();
    for entry in entries {
        if let Observation::OutboxCommit { id, key, outcome }
        | Observation::BrokerCommit { id, key, outcome } = &entry.what
        {
            rows.insert(id, SentRow { commit: entry, outcome, key, first_delivery: None });
        }
    }
    let (loses, mut lost) = (findings.store.loses_at_failover(), 0);
    let workload = findings.workload;
    let mut report =
        |id: &str, at: u64, what: String| findings.found.push(violation(workload, id, at, what));
    let mut effects: HashMap<&str, usize> = HashMap::new();
    for (place, entry) in entries.iter().enumerate() {
        let (id, what) = match &entry.what {
            Observation::Delivery { id } | Observation::BrokerDelivery { id } => {
                (id.as_str(), "sent")
            }
            Observation::InboxEffect { id } | Observation::BrokerEffect { id } => {
                (id.as_str(), "an effect")
            }
            _ => continue,
        };
        match rows.get_mut(id) {
            None => report(id, entry.to, format!("a message of nobody's was {what}")),
            Some(row) => {
                if row.outcome.is_refused() {
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
        if loses && row.is_committed() && (times == 0 || row.first_delivery.is_none()) {
            lost += 1;
        } else if row.is_committed() && row.first_delivery.is_none() {
            report(id, row.commit.to, "it was committed and never sent".to_owned());
        } else if row.is_committed() && times == 0 {
            report(id, row.commit.to, "it was committed, and its effect never happened".to_owned());
        }
    }
    let mut unordered = findings.apart();
    check_order(&rows, &mut unordered);
    for found in unordered.found {
        // For a moment of a failover two servers may take messages, and each sends its own.
        if loses {
            *findings.lost.entry("messages (order)").or_default() += 1;
        } else {
            findings.found.push(found);
        }
    }
    if lost > 0 {
        findings.lost.insert("messages", lost);
    }
}

fn violation(workload: &'static str, id: &str, at: u64, what: String) -> Violation {
    Violation { workload, key: id.to_owned(), what, at }
}

/// First deliveries of a key are in commit order, where the transactions did not overlap.
fn check_order(rows: &HashMap<&str, SentRow<'_>>, findings: &mut KeyFindings<'_>) {
    let mut keys: HashMap<&str, Vec<(&str, &SentRow<'_>)>> = HashMap::new();
    for (id, row) in rows.iter().filter(|(_, row)| row.is_committed()) {
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
                let workload = findings.workload;
                findings.found.push(violation(workload, id, row.commit.to, what));
            }
            if sent_later.is_none_or(|(_, end)| row.commit.to < end) {
                sent_later = Some((id, row.commit.to));
            }
        }
    }
}
