//! What a load has shown.

use std::fmt::Write;
use std::time::Duration;

use super::generator::GeneratorReport;
use super::memory_bound;
use super::quiet_tenant::{QUIET_KINDS, QuietTimes};

/// A hard promise that was broken. How long calls took is only reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadFailure {
    /// Something that was acknowledged is not there any more, or changed.
    Lost(String),
    /// A server had more memory than `docs/server.md` says.
    Memory(String),
    /// A server ended.
    Died(String),
    /// The quiet tenant was not served as before within 30 seconds after the load.
    NotRecovered(String),
}

/// One kind of load.
pub(super) struct LoadRow {
    pub(super) name: String,
    pub(super) open: u64,
    pub(super) offered: f64,
    pub(super) served: f64,
    pub(super) refused: f64,
    pub(super) failed: f64,
    pub(super) quiet: QuietTimes,
    /// The times just before the load.
    pub(super) idle: QuietTimes,
    /// The peak of each server.
    pub(super) memory: Vec<(String, u64)>,
    pub(super) memory_bound: u64,
    pub(super) acknowledged: u64,
    pub(super) lost: u64,
    /// After how long; the inner value is `None` if it did not.
    pub(super) recovered: Option<Option<Duration>>,
    pub(super) reports: Vec<GeneratorReport>,
}

impl LoadRow {
    /// The quiet tenant alone.
    pub(super) fn idle(quiet: QuietTimes, memory: Vec<(String, u64)>) -> Self {
        Self {
            name: "nothing else".to_owned(),
            open: 0,
            offered: 0.0,
            served: 0.0,
            refused: 0.0,
            failed: 0.0,
            quiet,
            idle: quiet,
            memory,
            memory_bound: memory_bound(0),
            acknowledged: 0,
            lost: 0,
            recovered: None,
            reports: Vec::new(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let times =
            QUIET_KINDS.iter().zip(&self.quiet).zip(&self.idle).map(|((kind, now), idle)| {
                let ratio = now.p99.as_secs_f64() / idle.p99.as_secs_f64().max(1e-9);
                let of_idle = if self.recovered.is_some() {
                    format!(", {ratio:.1}×")
                } else {
                    String::new()
                };
                let (p50, p99) = (millis(now.median), millis(now.p99));
                let not_served = match now.not_served {
                    0 => String::new(),
                    count => format!(" (**{count}** of {} not served)", now.calls),
                };
                format!("{kind:?}: {p50} / {p99} ms{of_idle}{not_served}")
            });
        let memory = self.memory.iter().map(|(name, peak)| format!("{name} {}", peak >> 20));
        let recovered = match self.recovered {
            None => "–".to_owned(),
            Some(Some(after)) => format!("{:.0} s", after.as_secs_f64()),
            Some(None) => "**no**".to_owned(),
        };
        vec![
            self.name.clone(),
            format!("{}", self.open),
            format!(
                "{:.0} / {:.0} / {:.0} / {:.0}",
                self.offered, self.served, self.refused, self.failed
            ),
            times.collect::<Vec<_>>().join("; "),
            format!("{} of {} MiB", memory.collect::<Vec<_>>().join(", "), self.memory_bound >> 20),
            format!("{} / {}", self.acknowledged, self.lost),
            recovered,
        ]
    }
}

fn millis(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1000.0)
}

/// The result of a load.
pub struct LoadReport {
    /// The store's name.
    pub store: String,
    pub(super) rows: Vec<LoadRow>,
    /// The hard promises that were broken.
    pub failures: Vec<LoadFailure>,
}

impl LoadReport {
    /// A table in Markdown, and the broken promises.
    pub fn table(&self) -> String {
        let mut text = format!("Store: {}\n\n", self.store);
        let head = [
            "load",
            "open",
            "calls/s: offered / served / refused / cut",
            "quiet tenant: median / p99, p99 to that just before the load",
            "peak memory",
            "acknowledged / lost",
            "recovered after",
        ];
        let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
        for row in &self.rows {
            let _ = writeln!(text, "| {} |", row.cells().join(" | "));
        }
        for failure in &self.failures {
            let _ = writeln!(text, "\nBROKEN: {failure:?}");
        }
        text
    }

    /// How many answers were acknowledged and asked for again.
    pub fn acknowledged(&self) -> u64 {
        self.rows.iter().map(|row| row.acknowledged).sum()
    }
}
