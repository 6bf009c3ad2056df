//! The judgement which lines are slower than recorded.

use std::collections::{BTreeMap, BTreeSet};

use hapax_workload::MarkdownTable;

use super::figures::{FigureLines, RatioKind};

/// A line that got slower, or dearer, by more than a quarter is noticed.
pub(super) const TOLERANCE: f64 = 1.25;

/// The figures of one comparison command, recorded and now.
pub(super) struct Judgement<'a> {
    recorded: &'a FigureLines,
    /// For each figure of each line the least slowdown of all runs so far.
    seen: BTreeMap<(&'a str, RatioKind), Seen>,
}

#[derive(Clone, Copy)]
struct Seen {
    now: f64,
    slowdown: f64,
}

impl<'a> Judgement<'a> {
    pub(super) fn new(recorded: &'a FigureLines) -> Self {
        Self { recorded, seen: BTreeMap::new() }
    }

    /// Adds the figures of a run. A figure keeps its best run: noise looks slower once, a slower program
    /// does so in every run.
    pub(super) fn add_run(&mut self, lines: &FigureLines) {
        for (line, recorded) in self.recorded {
            let Some(figures) = lines.get(line) else { continue };
            for (kind, recorded) in recorded {
                let Some(now) = figures.get(kind).copied() else { continue };
                let new = Seen { now, slowdown: kind.slowdown(*recorded, now) };
                let best = self.seen.entry((line, *kind)).or_insert(new);
                if new.slowdown < best.slowdown {
                    *best = new;
                }
            }
        }
    }

    /// Lines that were slower in all runs.
    pub(super) fn slower(&self) -> BTreeSet<&'a str> {
        let slower = self.seen.iter().filter(|(_, seen)| seen.slowdown > TOLERANCE);
        slower.map(|((line, _), _)| *line).collect()
    }

    /// Recorded lines, or figures of them, that no run had.
    pub(super) fn missing(&self) -> BTreeSet<&'a str> {
        let figures = self
            .recorded
            .iter()
            .flat_map(|(line, kinds)| kinds.keys().map(move |kind| (line.as_str(), *kind)));
        figures.filter(|figure| !self.seen.contains_key(figure)).map(|(line, _)| line).collect()
    }

    pub(super) fn table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::default();
        for ((line, kind), Seen { now, slowdown }) in &self.seen {
            let verdict = if *slowdown > TOLERANCE { "SLOWER" } else { "" };
            table.row([
                // A bar would end the cell.
                ("line", line.replace(" | ", ", ")),
                ("figure", kind.title().to_owned()),
                ("recorded", self.recorded[*line][kind].to_string()),
                ("now", now.to_string()),
                ("change", format!("{:+.0} %", (now / self.recorded[*line][kind] - 1.0) * 100.0)),
                ("", verdict.to_owned()),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(figures: &[(&str, RatioKind, f64)]) -> FigureLines {
        let mut lines = FigureLines::new();
        for (line, kind, value) in figures {
            lines.entry((*line).to_owned()).or_default().insert(*kind, *value);
        }
        lines
    }

    #[test]
    fn judgement_notices_more_than_a_quarter() {
        let recorded = lines(&[
            ("rate fell", RatioKind::Rate, 1.0),
            ("rate fell a little", RatioKind::Rate, 1.0),
            ("cost grew", RatioKind::Cpu, 1.0),
            ("cost grew a little", RatioKind::CpuInReferenceWork, 1.0),
            ("faster", RatioKind::Rate, 1.0),
        ]);
        let mut judgement = Judgement::new(&recorded);
        judgement.add_run(&lines(&[
            ("rate fell", RatioKind::Rate, 0.79),
            ("rate fell a little", RatioKind::Rate, 0.81),
            ("cost grew", RatioKind::Cpu, 1.26),
            ("cost grew a little", RatioKind::CpuInReferenceWork, 1.24),
            ("faster", RatioKind::Rate, 3.0),
            ("a new line", RatioKind::Rate, 0.1),
        ]));
        assert_eq!(judgement.slower(), ["cost grew", "rate fell"].into());
        assert!(judgement.missing().is_empty());
        let table = judgement.table().to_string();
        assert_eq!(table.matches("SLOWER").count(), 2, "{table}");
        assert!(table.contains("-21 %") && table.contains("+26 %"), "{table}");
    }

    #[test]
    fn judgement_forgives_what_one_run_does_as_recorded() {
        let recorded = lines(&[("noisy", RatioKind::Rate, 1.0), ("slow", RatioKind::Rate, 1.0)]);
        let mut judgement = Judgement::new(&recorded);
        for noisy in [0.5, 0.9, 0.4] {
            judgement.add_run(&lines(&[
                ("noisy", RatioKind::Rate, noisy),
                ("slow", RatioKind::Rate, 0.7),
            ]));
        }
        assert_eq!(judgement.slower(), ["slow"].into());
    }

    #[test]
    fn judgement_names_recorded_lines_without_a_figure() {
        let recorded = lines(&[
            ("gone", RatioKind::Rate, 1.0),
            ("half", RatioKind::Rate, 1.0),
            ("half", RatioKind::Cpu, 1.0),
        ]);
        let mut judgement = Judgement::new(&recorded);
        judgement.add_run(&lines(&[("half", RatioKind::Rate, 1.0)]));
        assert_eq!(judgement.missing(), ["gone", "half"].into());
        assert!(judgement.slower().is_empty());
    }
}
