//! What came out, as tables.

use hapax_bench::{Measured, Table, cell};

use super::stage::Role;

/// One subject, measured.
pub(super) struct Line {
    pub(super) role: Role,
    pub(super) first: Measured,
    pub(super) replay: Measured,
}

/// Which half of a line.
pub(super) type Half = fn(&Line) -> &Measured;

impl Line {
    pub(super) fn and(self, other: &Self) -> Self {
        let Self { role, first, replay } = self;
        Self { role, first: first.and(&other.first), replay: replay.and(&other.replay) }
    }

    pub(super) fn first(&self) -> &Measured {
        &self.first
    }

    pub(super) fn replay(&self) -> &Measured {
        &self.replay
    }
}

pub(super) fn find(lines: &[Line], role: Role) -> Option<&Line> {
    lines.iter().find(|line| line.role == role)
}

/// CPU time of the server under test and its store's server for one request, in µs.
pub(super) fn cpu(measured: &Measured) -> f64 {
    let micros =
        |group| measured.server_cpu_each(group).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    micros(SERVER) + micros(STORE)
}

/// The groups of processes, in the order in which they were planned.
const SERVER: usize = 0;
const STORE: usize = 1;

/// One for first runs, one for replays.
pub(super) fn tables(lines: &[Line]) -> String {
    let first = table("first runs (a fresh key each)", lines, Line::first);
    let replays = table("replays (one settled key)", lines, Line::replay);
    format!("{first}\n{replays}")
}

fn table(title: &str, lines: &[Line], half: Half) -> Table {
    let mut table = Table::new([
        title,
        "requests/s",
        "p50",
        "p99",
        "server CPU µs",
        "store CPU µs",
        "both",
        "over bare handler or nginx",
    ]);
    for line in lines {
        let measured = half(line);
        table.row([
            line.role.to_string(),
            cell::rate(measured.per_second()),
            cell::latency(measured.p50()),
            cell::latency(measured.p99()),
            cell::micros(measured.server_cpu_each(SERVER)),
            cell::micros(measured.server_cpu_each(STORE)),
            format!("{:.1}", cpu(measured)),
            over(lines, line, half),
        ]);
    }
    table
}

/// `+12.3 (×1.4)`.
fn over(lines: &[Line], line: &Line, half: Half) -> String {
    let baseline = line.role.baseline().and_then(|role| find(lines, role));
    let Some(baseline) = baseline else { return "—".into() };
    let (own, less) = (cpu(half(line)), cpu(half(baseline)));
    format!("{:+.1} (×{:.2})", own - less, own / less)
}
