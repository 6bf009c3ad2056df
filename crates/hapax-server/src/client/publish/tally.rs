//! What became of the events, and what is said about it.

use std::process::ExitCode;

use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::json;

use super::lines::Line;
use crate::client::failure::{CONFLICT, ERROR};
use crate::client::{line, note};

/// How many lines that were not published are named.
const NAMED: u64 = 20;

/// One of the `results` of an array.
#[derive(Deserialize)]
pub(super) struct Outcome {
    pub(super) status: u16,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    detail: String,
}

#[derive(Default)]
pub(super) struct Tally {
    published: u64,
    duplicates: u64,
    conflicts: u64,
    closed: u64,
    malformed: u64,
}

impl Tally {
    pub(super) fn count(&mut self, bar: &ProgressBar, at: &Line, outcome: &Outcome) {
        let code = outcome.kind.rsplit('/').next().unwrap_or_default();
        match (outcome.status, code) {
            (201, _) => self.published += 1,
            (200, _) => self.duplicates += 1,
            (_, "event-conflict") => {
                self.conflicts += 1;
                self.name(bar, at, "known with another content (event-conflict)");
            }
            (_, "job-closed") => {
                self.closed += 1;
                self.name(bar, at, "its job is closed (job-closed)");
            }
            (_, _) => self.refuse(bar, at, &outcome.detail),
        }
    }

    /// A line that is no event.
    pub(super) fn refuse(&mut self, bar: &ProgressBar, at: &Line, why: &str) {
        self.malformed += 1;
        self.name(bar, at, why);
    }

    fn name(&self, bar: &ProgressBar, at: &Line, why: &str) {
        match (self.conflicts + self.closed + self.malformed).cmp(&NAMED) {
            std::cmp::Ordering::Greater => {}
            order => bar.suspend(|| {
                note(format_args!("hapax: line {}: {why}", at.number));
                if order.is_eq() {
                    note("hapax: … and further lines, which the summary counts");
                }
            }),
        }
    }

    pub(super) fn shown(&self, json: bool) {
        let Self { published, duplicates, conflicts, closed, malformed } = self;
        if json {
            line(json!({
                "published": published, "duplicates": duplicates, "conflicts": conflicts,
                "closed": closed, "malformed": malformed,
            }));
            return;
        }
        let also = [(conflicts, "conflicts"), (closed, "of closed jobs"), (malformed, "malformed")];
        let also = also.iter().filter(|(n, _)| **n > 0).map(|(n, what)| format!(", {n} {what}"));
        line(format!("{published} published, {duplicates} duplicates{}", also.collect::<String>()));
    }

    pub(super) fn exit(&self) -> ExitCode {
        match (self.malformed, self.conflicts + self.closed) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => CONFLICT.into(),
            _ => ERROR.into(),
        }
    }
}
