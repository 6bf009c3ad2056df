//! Compares the records of LINE, the bot and the store after a run of kills, and lists violations.

use std::collections::{HashMap, HashSet};

/// The policy for an event whose gateway was killed during the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Rerun,
    Refuse,
}

/// One call of the bot. The lives of the gateway are numbered: each but the last ends with a kill.
#[derive(Clone, Debug)]
pub(crate) struct Handling {
    pub(crate) event: String,
    pub(crate) life: usize,
    /// Whether the bot finished the call.
    pub(crate) ended: bool,
}

/// Everything that was recorded, by `webhookEventId`.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// Events that got a 200.
    pub(crate) answered: HashSet<String>,
    /// Events that were sent, with or without a 200.
    pub(crate) sent: HashSet<String>,
    pub(crate) handled: Vec<Handling>,
    /// Events whose senders were told to wait.
    pub(crate) told: Vec<String>,
    /// Dead letters at the end.
    pub(crate) dead: HashSet<String>,
    /// By life: the events that the store had recorded as done after that life was killed.
    pub(crate) done_by: Vec<HashSet<String>>,
}

pub(crate) fn violations(history: &History, policy: Policy) -> Vec<String> {
    let mut wrong = lost(history, policy);
    let mut by_event: HashMap<&str, Vec<&Handling>> = HashMap::new();
    for handling in &history.handled {
        by_event.entry(&handling.event).or_default().push(handling);
    }
    for (event, handlings) in &by_event {
        if !history.sent.contains(*event) {
            wrong.push(format!("{event} was handled, and nobody sent it"));
        }
        if policy == Policy::Refuse && handlings.len() > 1 {
            wrong.push(format!(
                "{event} was handled {} times, never was the policy",
                handlings.len()
            ));
        }
        wrong.extend(repeated(history, event, handlings));
    }
    let told: HashSet<_> = history.told.iter().collect();
    if told.len() < history.told.len() {
        wrong.push("somebody was told to wait twice for one event".into());
    }
    wrong
}

fn lost(history: &History, policy: Policy) -> Vec<String> {
    let handled: HashSet<_> =
        history.handled.iter().filter(|one| one.ended).map(|one| &one.event).collect();
    let kept = |event: &String| {
        let dead = policy == Policy::Refuse && history.dead.contains(event);
        handled.contains(event) || history.told.contains(event) || dead
    };
    let lost = history.answered.iter().filter(|event| !kept(event));
    lost.map(|event| format!("{event} got its 200 and was lost")).collect()
}

/// Events that were repeated without a kill in between, or although they were done before it.
fn repeated(history: &History, event: &str, handlings: &[&Handling]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut lives = HashSet::new();
    for handling in handlings {
        if !lives.insert(handling.life) {
            wrong.push(format!("{event} was handled twice in life {}", handling.life));
        }
        let before = history.done_by.iter().take(handling.life);
        if before.clone().any(|done| done.contains(event)) {
            wrong.push(format!("{event} was done, and handled again in life {}", handling.life));
        }
    }
    wrong
}

#[cfg(test)]
mod planted {
    use super::*;

    fn handled(event: &str, life: usize) -> Handling {
        Handling { event: event.into(), life, ended: true }
    }

    fn set(events: &[&str]) -> HashSet<String> {
        events.iter().map(|event| (*event).to_owned()).collect()
    }

    /// Two lives: the first finished `a` and was killed during `b`; the sender of `c` was told to
    /// wait, and `d` came later.
    fn right() -> History {
        let cut_off = Handling { ended: false, ..handled("b", 0) };
        History {
            answered: set(&["a", "b", "c", "d"]),
            sent: set(&["a", "b", "c", "d"]),
            handled: vec![handled("a", 0), cut_off, handled("b", 1), handled("d", 1)],
            told: vec!["c".into()],
            dead: HashSet::new(),
            done_by: vec![set(&["a", "c"])],
        }
    }

    fn complaint(history: &History, policy: Policy) -> String {
        violations(history, policy).join("; ")
    }

    #[test]
    fn line_checker_accepts_a_correct_history() {
        assert_eq!(complaint(&right(), Policy::Rerun), "");
        let mut refused = right();
        refused.handled.remove(2);
        refused.dead = set(&["b"]);
        assert_eq!(complaint(&refused, Policy::Refuse), "");
    }

    /// Checks that each change of the correct history is found, with this complaint.
    /// A fault to plant in a history, and the violation that must be found.
    type PlantedFault = (fn(&mut History), &'static str);

    fn finds(planted: &[PlantedFault]) {
        for (change, expected) in planted {
            let mut history = right();
            change(&mut history);
            let complaint = complaint(&history, Policy::Rerun);
            assert!(complaint.contains(expected), "{expected} is not in {complaint}");
        }
    }

    #[test]
    fn line_checker_finds_a_lost_event() {
        finds(&[
            (|lost| drop(lost.handled.pop()), "d got its 200 and was lost"),
            (|cut_off| drop(cut_off.handled.remove(2)), "b got its 200 and was lost"),
            (|untold| untold.told.clear(), "c got its 200 and was lost"),
            (
                |given_up| {
                    given_up.handled.pop();
                    given_up.dead = set(&["d"]);
                },
                "d got its 200 and was lost",
            ),
        ]);
    }

    #[test]
    fn line_checker_finds_a_doubled_event() {
        finds(&[
            (|same_life| same_life.handled.push(handled("d", 1)), "d was handled twice in life 1"),
            (|done| done.handled.push(handled("a", 1)), "a was done, and handled again"),
            (|told| told.handled.push(handled("c", 1)), "c was done, and handled again"),
            (|twice| twice.told.push("c".into()), "told to wait twice"),
        ]);
        assert!(complaint(&right(), Policy::Refuse).contains("b was handled 2 times"));
    }

    #[test]
    fn line_checker_finds_an_event_that_was_never_sent() {
        finds(&[(|invented| invented.handled.push(handled("z", 1)), "nobody sent it")]);
    }
}
