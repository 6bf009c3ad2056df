//! The checker: which promises of `docs/promises.md` does a recorded history break?
//!
//! It is a pure function, so that a stored history can be checked again, and so that the tests can plant bugs in a history
//! and see that each is found. Every rule is about what must hold whatever order the calls took effect in: a call that
//! ended unknown may have been done at any time since it was sent, or never.
//!
//! A failover of some stores may lose what was acknowledged. In their histories a loss is counted, and everything is
//! checked that holds nevertheless: fences grow, and followers of events are told.

mod commands;
mod events;
mod fences;
mod line;
mod locks;
mod outbox;
mod proxy;
mod records;
mod transactions;

use std::collections::BTreeMap;

use clap::ValueEnum;

use crate::history::{HistoryEntry, Observation};
use crate::installation::StoreKind;

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
    /// The store of the run.
    store: StoreKind,
    found: Vec<Violation>,
    /// What a failover lost.
    lost: Losses,
}

/// How much of what a failover lost.
pub type Losses = BTreeMap<&'static str, usize>;

impl KeyFindings<'_> {
    fn report(&mut self, at: u64, what: String) {
        let (workload, key) = (self.workload, self.key.to_owned());
        self.found.push(Violation { workload, key, what, at });
    }

    /// Counts what a failover may lose, and reports it where nothing may be lost.
    fn report_loss(&mut self, of: &'static str, at: u64, what: String) {
        if self.store.loses_at_failover() {
            *self.lost.entry(of).or_default() += 1;
        } else {
            self.report(at, what);
        }
    }

    /// Findings of a check for which it is not yet known whether they are losses.
    fn apart(&self) -> Self {
        let (found, lost) = (Vec::new(), Losses::new());
        Self { workload: self.workload, key: self.key, store: self.store, found, lost }
    }
}

/// All violations, in the order of their time.
pub fn check_history(history: &[HistoryEntry]) -> Vec<Violation> {
    examine(history).0
}

/// What failovers lost of what was acknowledged; nothing on stores that may not lose anything, where each is a violation.
pub fn count_losses(history: &[HistoryEntry]) -> Losses {
    if store_of(history).loses_at_failover() { examine(history).1 } else { Losses::new() }
}

/// The store of a run, which decides what may be lost.
fn store_of(history: &[HistoryEntry]) -> StoreKind {
    let store = history.iter().find_map(|entry| match &entry.what {
        Observation::RunOn { store, .. } => StoreKind::from_str(store, false).ok(),
        _ => None,
    });
    // Nothing may be lost in a history that does not say.
    store.unwrap_or(StoreKind::Sqlite)
}

fn examine(history: &[HistoryEntry]) -> (Vec<Violation>, Losses) {
    let store = store_of(history);
    let mut lost = Losses::new();
    let mut keys: BTreeMap<(&'static str, &str), Vec<&HistoryEntry>> = BTreeMap::new();
    for entry in history {
        if let Some((workload, key)) = entry.what.subject() {
            // Order is a matter of all messages of a key, so they are checked together.
            let key = if ["outbox", "broker"].contains(&workload) { "" } else { key };
            keys.entry((workload, key)).or_default().push(entry);
        }
    }
    let is_undisturbed = count_faults(history).is_empty();
    let mut violations = if store.has_one_sequence() { fences::check(history) } else { Vec::new() };
    for ((workload, key), mut entries) in keys {
        // A stable sort: what a single client saw stays in its order.
        entries.sort_by_key(|entry| entry.from);
        let mut findings =
            KeyFindings { workload, key, store, found: Vec::new(), lost: Losses::new() };
        match workload {
            "locks" => locks::check(&entries, &mut findings),
            "records" => records::check(&entries, &mut findings),
            "commands" => commands::check(&entries, &mut findings),
            "events" => events::check(&entries, &mut findings),
            "proxy" => proxy::check(&entries, is_undisturbed, &mut findings),
            "transactions" => transactions::check(&entries, &mut findings),
            "line" => line::check(&entries, is_undisturbed, &mut findings),
            _ => outbox::check(&entries, &mut findings),
        }
        violations.append(&mut findings.found);
        for (of, count) in findings.lost {
            *lost.entry(of).or_default() += count;
        }
    }
    violations.sort_by_key(|violation| violation.at);
    (violations, lost)
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
