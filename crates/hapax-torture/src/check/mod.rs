//! The checker: which promises of `docs/promises.md` does a recorded history break?
//!
//! It is a pure function, so that a stored history can be checked again, and so that the tests can plant bugs in a history
//! and see that each is found. Every rule is about what must hold whatever order the calls took effect in: a call that
//! ended unknown may have been done at any time since it was sent, or never.

mod commands;
mod events;
mod locks;
mod outbox;
mod proxy;
mod records;

use std::collections::BTreeMap;

use crate::history::{HistoryEntry, Observation};

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The workload that saw it.
    pub workload: &'static str,
    /// The key, job or message.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// The moment to look at, in microseconds since the start of the run.
    pub at: u64,
}

/// The findings about one key.
struct KeyFindings<'a> {
    workload: &'static str,
    key: &'a str,
    found: Vec<Violation>,
}

impl KeyFindings<'_> {
    fn report(&mut self, at: u64, what: String) {
        let (workload, key) = (self.workload, self.key.to_owned());
        self.found.push(Violation { workload, key, what, at });
    }
}

/// All violations, in the order of their time.
pub fn check_history(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut keys: BTreeMap<(&'static str, &str), Vec<&HistoryEntry>> = BTreeMap::new();
    for entry in history {
        if let Some((workload, key)) = entry.what.subject() {
            // Order is a matter of all messages of a key, so they are checked together.
            let key = if workload == "outbox" { "" } else { key };
            keys.entry((workload, key)).or_default().push(entry);
        }
    }
    let is_undisturbed = count_faults(history).is_empty();
    let mut violations = Vec::new();
    for ((workload, key), mut entries) in keys {
        // A stable sort: what a single client saw stays in its order.
        entries.sort_by_key(|entry| entry.from);
        let mut findings = KeyFindings { workload, key, found: Vec::new() };
        match workload {
            "locks" => locks::check(&entries, &mut findings),
            "records" => records::check(&entries, &mut findings),
            "commands" => commands::check(&entries, &mut findings),
            "events" => events::check(&entries, &mut findings),
            "proxy" => proxy::check(&entries, is_undisturbed, &mut findings),
            _ => outbox::check(&entries, &mut findings),
        }
        violations.append(&mut findings.found);
    }
    violations.sort_by_key(|violation| violation.at);
    violations
}

/// When the call was done at the latest: a call whose end is unknown may be done at any later time.
fn latest_end(entry: &HistoryEntry) -> u64 {
    if entry.what.is_unknown() { u64::MAX } else { entry.to }
}

/// How much of each workload a history has, for the table of a run.
pub fn count_observations(history: &[HistoryEntry]) -> BTreeMap<&'static str, usize> {
    let mut counts = BTreeMap::new();
    for (workload, _) in history.iter().filter_map(|entry| entry.what.subject()) {
        *counts.entry(workload).or_default() += 1;
    }
    counts
}

/// How often each kind of fault happened.
pub fn count_faults(history: &[HistoryEntry]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for entry in history {
        if let Observation::Fault { kind, .. } = &entry.what {
            *counts.entry(kind.as_str()).or_default() += 1;
        }
    }
    counts
}
