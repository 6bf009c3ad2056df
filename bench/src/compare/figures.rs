//! The figures of a table's lines that can be compared with those of another run: ratios.

use std::collections::BTreeMap;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::tables::{PrintedTable, printed_tables};

/// The figures of each line, by the line's name.
pub(super) type FigureLines = BTreeMap<String, LineFigures>;

/// The figures of one line of a table.
pub(super) type LineFigures = BTreeMap<RatioKind, f64>;

/// A figure that means the same on a faster machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RatioKind {
    /// Operations per second over those of the raw engine, nginx, nchan or the broker's own client.
    Rate,
    /// CPU time per operation over theirs.
    Cpu,
    /// CPU time per operation, where there is nothing to compare with, over the time of
    /// [`reference_work`].
    CpuInReferenceWork,
}

impl RatioKind {
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Rate => "rate over its peer's",
            Self::Cpu => "CPU over its peer's",
            Self::CpuInReferenceWork => "CPU in reference work",
        }
    }

    /// How many times slower, or dearer, `now` is than `recorded`.
    pub(super) fn slowdown(self, recorded: f64, now: f64) -> f64 {
        match self {
            Self::Rate => recorded / now,
            Self::Cpu | Self::CpuInReferenceWork => now / recorded,
        }
    }
}

/// Columns that tell one line of a table from another, beside the first.
const NAMING: [&str; 6] = ["tasks", "clients", "connections", "keys", "from", "operation"];
/// Columns with a rate, each with the column of the same line that has the peer's.
const RATES: [(&str, &str); 2] =
    [("hapax ops/s", "raw ops/s"), ("relay rows/s", "own client, confirmed/s")];
/// Columns with a rate whose peer is another line.
const RATES_OF_LINES: [&str; 2] = ["requests/s", "deliveries/s"];
/// How the name of a line begins, and its peer's.
const PEER_LINES: [(&str, &str); 3] =
    [("layer, ", "bare handler"), ("hapax proxy, ", "nginx"), ("hapax", "nchan")];

/// The line of `fanout` that shows what the kernel takes of a delivery; hapax is not in it.
const KERNEL_LINE: &str = "bare-send";

/// Reads the figures from the printed tables. `reference` is the time of [`reference_work`] in µs.
pub(super) fn printed_figures(text: &str, reference: f64) -> anyhow::Result<FigureLines> {
    let mut lines = FigureLines::new();
    for table in printed_tables(text) {
        for row in &table.rows {
            let figures = figures(&table, row, reference);
            if !figures.is_empty() {
                let name = line_name(&table, row);
                ensure!(!lines.contains_key(&name), "two lines have the name {name}");
                lines.insert(name, figures);
            }
        }
    }
    Ok(lines)
}

/// Headings, the first column with its title, and the other naming columns.
fn line_name(table: &PrintedTable, row: &[String]) -> String {
    let mut parts = table.headings.clone();
    parts.extend([table.titles[0].clone(), row[0].clone()]);
    for title in NAMING.iter().filter(|title| **title != table.titles[0]) {
        parts.extend(table.cell(row, title).map(|cell| format!("{title} {cell}")));
    }
    parts.join(" | ")
}

fn figures(table: &PrintedTable, row: &[String], reference: f64) -> LineFigures {
    let number = |row: &[String], title: &str| table.cell(row, title).and_then(number);
    let peer = peer_line(table, row);
    let own_rates = RATES.iter().filter_map(|(own, raw)| number(row, own).zip(number(row, raw)));
    let line_rates = RATES_OF_LINES.iter().filter_map(|t| number(row, t).zip(number(peer?, t)));
    let rate = own_rates.chain(line_rates).map(|(own, raw)| (RatioKind::Rate, own / raw)).next();
    let own_cpu = cpu(table, row, |title| !is_peer_column(title));
    let peer_cpu = match peer {
        Some(peer) => cpu(table, peer, |title| !is_peer_column(title)),
        None => cpu(table, row, is_peer_column),
    };
    let cpu = match (own_cpu, peer_cpu) {
        (Some(own), Some(peer)) => Some((RatioKind::Cpu, own / peer)),
        (Some(own), None) if !is_peer_line(&row[0]) => {
            Some((RatioKind::CpuInReferenceWork, own / reference))
        }
        _ => None,
    };
    let usable = |(_, value): &(RatioKind, f64)| value.is_finite() && *value > 0.0;
    rate.into_iter().chain(cpu).filter(usable).map(|(kind, value)| (kind, rounded(value))).collect()
}

/// The line of the same table that this one is compared with.
fn peer_line<'a>(table: &'a PrintedTable, row: &[String]) -> Option<&'a Vec<String>> {
    let is_peer_of = |(own, peer): &&(&str, &str)| row[0].starts_with(own) && row[0] != *peer;
    let (_, peer) = PEER_LINES.iter().find(is_peer_of)?;
    let alike = |other: &&Vec<String>| {
        other[0] == *peer && NAMING.iter().all(|t| table.cell(other, t) == table.cell(row, t))
    };
    table.rows.iter().find(alike)
}

fn is_peer_line(name: &str) -> bool {
    name == KERNEL_LINE || PEER_LINES.iter().any(|(_, peer)| *peer == name)
}

/// Whether a column belongs to the raw engine, or to the broker's own client.
fn is_peer_column(title: &str) -> bool {
    title.starts_with("raw ") || title.starts_with("own ")
}

/// The sum of the columns with CPU time that are chosen.
fn cpu(table: &PrintedTable, row: &[String], chosen: impl Fn(&str) -> bool) -> Option<f64> {
    let has_cpu =
        |title: &str| title.contains("CPU") || matches!(title, "raw client" | "raw server");
    let columns = table.titles.iter().filter(|title| has_cpu(title) && chosen(title));
    columns.filter_map(|title| number(table.cell(row, title)?)).reduce(|sum, more| sum + more)
}

/// A number as [`hapax_workload::cell`] writes it; `None` for `—`.
fn number(cell: &str) -> Option<f64> {
    cell.parse().ok()
}

/// Three digits are more than any run repeats.
fn rounded(value: f64) -> f64 {
    let digits = 10_f64.powf(2.0 - value.abs().log10().floor());
    (value * digits).round() / digits
}

/// The time of a fixed piece of work on this machine in µs: 16 KiB hashed and copied. The CPU time of
/// lines without a peer is compared in this unit.
pub(super) fn reference_work() -> f64 {
    use std::hash::{DefaultHasher, Hasher};
    const SIZE: usize = 16 << 10;
    const REPEATED: u32 = 100;
    let source = vec![0x5a_u8; SIZE];
    let once = || {
        let began = std::time::Instant::now();
        for _ in 0..REPEATED {
            let mut hasher = DefaultHasher::new();
            hasher.write(&std::hint::black_box(source.clone()));
            std::hint::black_box(hasher.finish());
        }
        began.elapsed().as_secs_f64() * 1e6 / f64::from(REPEATED)
    };
    // The fastest of many: whatever else runs on the machine makes it slower, never faster.
    (0..100).map(|_| once()).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures_of(text: &str) -> Vec<(String, Vec<(RatioKind, f64)>)> {
        let lines = printed_figures(text, 2.0).unwrap();
        lines.into_iter().map(|(name, figures)| (name, figures.into_iter().collect())).collect()
    }

    #[test]
    fn figures_compare_with_raw_columns() {
        let text = "## Redis 7.0 (x)\n\
            | workload | tasks | hapax ops/s | raw ops/s | ratio | p50 | client CPU µs/op | server CPU µs/op | raw client | raw server |\n\
            |---|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n\
            | lock | 64 | 68200 | 137600 | 0.50 | 1 ms | 12.0 | 10.0 | 7.0 | 4.0 |\n\
            | lock | 1 | 900 | — | — | 1 ms | 3.0 | — | — | — |\n";
        let (rate, cpu, own) = (RatioKind::Rate, RatioKind::Cpu, RatioKind::CpuInReferenceWork);
        assert_eq!(
            figures_of(text),
            [
                ("Redis | workload | lock | tasks 1".to_owned(), vec![(own, 1.5)]),
                ("Redis | workload | lock | tasks 64".to_owned(), vec![(rate, 0.496), (cpu, 2.0)]),
            ]
        );
    }

    #[test]
    fn figures_compare_with_lines_of_the_peer() {
        let text = "| first runs | requests/s | server CPU µs | store CPU µs | both |\n|---|---:|---:|---:|---:|\n\
            | bare handler | 1000 | 8.0 | — | 8.0 |\n| layer, Redis | 500 | 16.0 | 8.0 | 24.0 |\n\
            | nginx | 400 | 16.0 | — | 16.0 |\n| hapax proxy, memory | 200 | 40.0 | — | 40.0 |\n\n\
            | at a fixed rate | clients | deliveries/s | server CPU µs/delivery |\n|---|---:|---:|---:|\n\
            | hapax | 1000 | 20 | 5.00 |\n| nchan | 1000 | 20 | 10.00 |\n| hapax | 5000 | 20 | 8.00 |\n\
            | nchan | 5000 | 10 | 10.00 |\n";
        let (rate, cpu) = (RatioKind::Rate, RatioKind::Cpu);
        assert_eq!(
            figures_of(text),
            [
                (
                    "at a fixed rate | hapax | clients 1000".to_owned(),
                    vec![(rate, 1.0), (cpu, 0.5)]
                ),
                (
                    "at a fixed rate | hapax | clients 5000".to_owned(),
                    vec![(rate, 2.0), (cpu, 0.8)]
                ),
                ("first runs | hapax proxy, memory".to_owned(), vec![(rate, 0.5), (cpu, 2.5)]),
                ("first runs | layer, Redis".to_owned(), vec![(rate, 0.5), (cpu, 3.0)]),
            ]
        );
    }

    #[test]
    fn figures_of_a_broker_sum_up_relay_broker_and_store() {
        let text = "## Brokers\n| broker | own client, confirmed/s | from | relay rows/s | relay CPU µs/row | broker CPU µs/row | store CPU µs/row | own client CPU µs | own broker CPU µs |\n\
            |---|---:|---:|---:|---:|---:|---:|---:|---:|\n\
            | NATS | 1000 | memory | 740 | 10.0 | 10.0 | — | 4.0 | 6.0 |\n";
        let expected = vec![(RatioKind::Rate, 0.74), (RatioKind::Cpu, 2.0)];
        assert_eq!(
            figures_of(text),
            [("Brokers | broker | NATS | from memory".to_owned(), expected)]
        );
    }

    #[test]
    fn figures_refuse_two_lines_of_the_same_name() {
        let text = "| store | CPU |\n|---|---|\n| a | 1.0 |\n| a | 2.0 |\n";
        assert!(printed_figures(text, 1.0).is_err());
    }

    #[test]
    fn slowdown_is_above_one_where_rate_falls_or_cpu_grows() {
        assert_eq!(RatioKind::Rate.slowdown(0.8, 0.4), 2.0);
        assert_eq!(RatioKind::Cpu.slowdown(2.0, 4.0), 2.0);
        assert_eq!(RatioKind::Cpu.slowdown(4.0, 2.0), 0.5);
    }

    #[test]
    fn reference_work_takes_time() {
        assert!(reference_work() > 0.0);
    }
}
