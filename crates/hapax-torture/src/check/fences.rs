//! Fences across keys: in SQL all come from one sequence, so that no two grants have the same, of whatever keys.

use std::collections::HashMap;

use super::Violation;
use crate::history::{CallOutcome, CommandAnswer, HistoryEntry, Observation};

/// Grants of one key with the same fence are found by the check of that key.
pub(super) fn check(history: &[HistoryEntry]) -> Vec<Violation> {
    let mut grants = HashMap::new();
    let mut found = Vec::new();
    for entry in history {
        let fence = match &entry.what {
            Observation::LockTake { outcome: CallOutcome::Done(fence), .. }
            | Observation::CommandBegin {
                outcome: CallOutcome::Done(CommandAnswer::Granted { fence, .. }),
                ..
            } => *fence,
            _ => continue,
        };
        let Some(subject) = entry.what.subject() else { continue };
        let first = *grants.entry(fence).or_insert(subject);
        if first != subject {
            let (workload, key) = subject;
            let what = format!("fence {fence} was granted to {} `{}`, too", first.0, first.1);
            found.push(Violation { workload, key: key.to_owned(), what, at: entry.to });
        }
    }
    found
}
