//! The recorded history, and a check of it.

use std::collections::{HashMap, HashSet};

/// A row that a writer put into the outbox.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) key: String,
    /// When its transaction began and when its end was known, on one clock of the test's.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    pub(crate) committed: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) rows: Vec<Row>,
    /// Ids as the sink got them, in that order.
    pub(crate) deliveries: Vec<String>,
    /// Ids whose effect the consumer committed.
    pub(crate) effects: Vec<String>,
    /// Whether nothing was killed, cut or failed: then no row may be sent twice.
    pub(crate) undisturbed: bool,
}

pub(crate) fn violations(history: &History) -> Vec<String> {
    let mut first: HashMap<&str, usize> = HashMap::new();
    for (at, id) in history.deliveries.iter().enumerate() {
        first.entry(id).or_insert(at);
    }
    let mut wrong = Vec::new();
    delivered(history, &first, &mut wrong);
    ordered(history, &first, &mut wrong);
    effects(history, &mut wrong);
    if history.undisturbed && history.deliveries.len() > first.len() {
        wrong.push("something was sent twice, although nothing was disturbed".to_owned());
    }
    wrong
}

/// Every committed row was sent at least once, and no other.
fn delivered(history: &History, first: &HashMap<&str, usize>, wrong: &mut Vec<String>) {
    let committed = |row: &&Row| row.committed;
    let known: HashSet<&str> =
        history.rows.iter().filter(committed).map(|row| row.id.as_str()).collect();
    wrong.extend(
        known.iter().filter(|id| !first.contains_key(**id)).map(|id| format!("{id} never came")),
    );
    let rolled_back = |id: &str| history.rows.iter().any(|row| row.id == id);
    for id in first.keys().filter(|id| !known.contains(**id)) {
        let what = if rolled_back(id) { "was rolled back" } else { "is an id of nobody's" };
        wrong.push(format!("{id} came, and {what}"));
    }
}

/// First deliveries of one key are in commit order, unless the transactions overlapped.
fn ordered(history: &History, first: &HashMap<&str, usize>, wrong: &mut Vec<String>) {
    let mut keys: HashMap<&str, Vec<&Row>> = HashMap::new();
    for row in history.rows.iter().filter(|row| row.committed) {
        keys.entry(&row.key).or_default().push(row);
    }
    for rows in keys.values() {
        for (earlier, later) in rows.iter().flat_map(|a| rows.iter().map(move |b| (a, b))) {
            let places = (first.get(earlier.id.as_str()), first.get(later.id.as_str()));
            if let (Some(one), Some(two)) = places
                && earlier.ended < later.began
                && two < one
            {
                wrong.push(format!("{} came before {} of the same key", later.id, earlier.id));
            }
        }
    }
}

/// Behind the inbox, each committed row took effect once.
fn effects(history: &History, wrong: &mut Vec<String>) {
    let mut times: HashMap<&str, usize> = HashMap::new();
    for id in &history.effects {
        *times.entry(id).or_default() += 1;
    }
    for (id, times) in times.iter().filter(|(_, times)| **times > 1) {
        wrong.push(format!("the effect of {id} happened {times} times"));
    }
    for row in history.rows.iter().filter(|row| row.committed) {
        if !times.contains_key(row.id.as_str()) {
            wrong.push(format!("the effect of {} never happened", row.id));
        }
    }
}
