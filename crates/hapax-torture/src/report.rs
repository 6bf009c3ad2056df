//! What a run, or a history that is checked again, has shown.

use std::fmt::Write;

use crate::check::{Violation, check_history, count_faults, count_losses, count_observations};
use crate::history::{HistoryEntry, Observation};
use crate::timeline::draw_timeline;

/// How many violations are drawn.
const MOST_PICTURES: usize = 5;
/// Shown in place of the store and the seed, which older histories do not have.
const NOT_RECORDED: &str = "not recorded";

/// The result of a run.
pub struct TortureReport {
    /// The store's name.
    pub store: String,
    /// The seed of the run, if the history has it.
    pub seed: Option<u64>,
    /// How long it took.
    pub seconds: u64,
    /// Everything that was seen.
    pub history: Vec<HistoryEntry>,
    /// The broken promises.
    pub violations: Vec<Violation>,
    /// Processes that ended although nobody killed them, with the end of their logs.
    pub crashed: Vec<String>,
}

impl TortureReport {
    /// Checks the history of a run, now or later.
    pub fn of(history: Vec<HistoryEntry>, seconds: u64, crashed: Vec<String>) -> Self {
        let run = history.iter().find_map(|entry| match &entry.what {
            Observation::RunOn { store, seed } => Some((store.clone(), *seed)),
            _ => None,
        });
        let (store, seed) = run.unwrap_or_else(|| (NOT_RECORDED.to_owned(), None));
        let violations = check_history(&history);
        Self { store, seed, seconds, history, violations, crashed }
    }

    /// Whether every promise was kept and no process ended by itself.
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty() && self.crashed.is_empty()
    }

    /// A table in Markdown.
    pub fn table(&self) -> String {
        let join = |counts: Vec<(&str, usize)>| {
            let counts = counts.iter().map(|(name, count)| format!("{name} {count}"));
            counts.collect::<Vec<_>>().join(", ")
        };
        let calls: Vec<(&str, usize)> = count_observations(&self.history).into_iter().collect();
        let faults: Vec<(&str, usize)> = count_faults(&self.history).into_iter().collect();
        let unknown = self.history.iter().filter(|entry| entry.what.is_unknown()).count();
        let sum = |counts: &[(&str, usize)]| counts.iter().map(|(_, count)| count).sum::<usize>();
        let mut table = String::from("| | |\n|---|---|\n");
        let mut line = |name: &str, value: String| {
            let _ = writeln!(table, "| {name} | {value} |");
        };
        line("store", self.store.clone());
        line("seed", self.seed.map_or_else(|| NOT_RECORDED.to_owned(), |seed| seed.to_string()));
        line("seconds", self.seconds.to_string());
        line("operations", format!("{} ({})", sum(&calls), join(calls.clone())));
        line("of these with an unknown end", unknown.to_string());
        line("faults", format!("{} ({})", sum(&faults), join(faults.clone())));
        let again: Vec<(&str, usize)> = self.asked_again();
        if !again.is_empty() {
            line(
                "asked for again at the end",
                format!("{} ({})", sum(&again), join(again.clone())),
            );
        }
        let lost: Vec<(&str, usize)> = count_losses(&self.history).into_iter().collect();
        if !lost.is_empty() {
            line("lost at failovers", join(lost));
        }
        line("violations", self.violations.len().to_string());
        table
    }

    /// How many keys of each workload were asked for again after the faults.
    fn asked_again(&self) -> Vec<(&str, usize)> {
        let again = self.history.iter().filter_map(|entry| match &entry.what {
            Observation::AskedAgain { workload, keys } => {
                Some((workload.as_str(), usize::try_from(*keys).ok()?))
            }
            _ => None,
        });
        again.collect()
    }

    /// Pictures of the first violations, and the logs of crashed processes.
    pub fn pictures(&self) -> String {
        let mut text = String::new();
        for violation in self.violations.iter().take(MOST_PICTURES) {
            let _ = writeln!(text, "{}", draw_timeline(&self.history, violation));
        }
        if self.violations.len() > MOST_PICTURES {
            let more = self.violations.len() - MOST_PICTURES;
            let _ = writeln!(text, "… and {more} more violations");
        }
        for crashed in &self.crashed {
            let _ = writeln!(text, "ended by itself: {crashed}");
        }
        text
    }
}
