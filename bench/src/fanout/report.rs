//! The result of a fan-out run, and its tables.

use std::ops::AddAssign;
use std::time::Duration;

use hapax_workload::{MarkdownTable, cell};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::load::histogram;
use super::server::FanoutServer;

/// The result of one server with one number of clients.
pub(super) struct FanoutLine {
    pub(super) kind: FanoutServer,
    pub(super) clients: usize,
    pub(super) outcome: FanoutResult,
}

pub(super) fn tables(lines: &[FanoutLine]) -> String {
    let paced = table("at a fixed rate", lines, |outcome| &outcome.paced);
    let flat_out = table("as fast as it goes", lines, |outcome| &outcome.flat_out);
    format!("{paced}\n{flat_out}\n{}\n{}", memory(lines), aims(lines))
}

fn table(
    title: &str,
    lines: &[FanoutLine],
    phase: impl Fn(&FanoutResult) -> &FanoutPhase,
) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    for line in lines {
        let phase = phase(&line.outcome);
        let latencies = phase.histogram();
        let quantile = |q| cell::latency(Duration::from_nanos(latencies.value_at_quantile(q)));
        table.row([
            (title, line.kind.name().to_owned()),
            ("clients", line.clients.to_string()),
            ("events/s", cell::rate(phase.events as f64 / phase.elapsed.as_secs_f64())),
            ("deliveries/s", cell::rate(phase.deliveries as f64 / phase.elapsed.as_secs_f64())),
            ("server CPU µs/delivery", format!("{:.2}", phase.server_micros())),
            ("server's core busy", phase.share(phase.server_cpu)),
            ("load busy", phase.share(phase.load_cpu)),
            ("p50", quantile(0.50)),
            ("p99", quantile(0.99)),
            ("bytes/delivery", (phase.bytes / phase.deliveries.max(1)).to_string()),
            ("lost", phase.lost.to_string()),
            ("twice", phase.duplicates.to_string()),
        ]);
    }
    table
}

fn memory(lines: &[FanoutLine]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    for FanoutLine { kind, clients, outcome } in lines {
        let each = |bytes: u64| format!("{:.1}", bytes as f64 / 1024.0 / (*clients).max(1) as f64);
        table.row([
            ("memory", kind.name().to_owned()),
            ("clients", clients.to_string()),
            ("kB/connection", each(outcome.connected)),
            ("kB/connection at the end", each(outcome.peak)),
        ]);
    }
    table
}

fn aims(lines: &[FanoutLine]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    let of = |kind, clients| {
        let found = lines.iter().find(|line| line.kind == kind && line.clients == clients);
        found.map(|line| &line.outcome)
    };
    for line in lines.iter().filter(|line| line.kind == FanoutServer::Hapax) {
        let (hapax, clients) = (&line.outcome, line.clients);
        let mut row = |aim: &str, seen: String, met: bool| {
            table.row([
                ("aim", aim.to_owned()),
                ("clients", clients.to_string()),
                ("seen", seen),
                ("met", if met { "yes" } else { "NO" }.to_owned()),
            ]);
        };
        if let Some(nchan) = of(FanoutServer::Nchan, clients) {
            let ratio = |phase: fn(&FanoutResult) -> &FanoutPhase| {
                phase(hapax).server_micros() / phase(nchan).server_micros()
            };
            let (paced, flat_out) = (ratio(|o| &o.paced), ratio(|o| &o.flat_out));
            let seen = format!("×{paced:.2} at a fixed rate, ×{flat_out:.2} as fast as it goes");
            row("at most half of nchan's CPU", seen, paced <= 0.5 && flat_out <= 0.5);
            let memory = hapax.connected as f64 / nchan.connected.max(1) as f64;
            row("at most half of nchan's memory", format!("×{memory:.2}"), memory <= 0.5);
        }
        let phases = [&hapax.paced, &hapax.flat_out];
        let wrong: u64 = phases.iter().map(|phase| phase.lost + phase.duplicates).sum();
        let all: u64 = phases.iter().map(|phase| phase.deliveries).sum();
        row("no gap, no duplicate", format!("{wrong} in {all} deliveries"), wrong == 0);
    }
    table
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FanoutResult {
    /// How many bytes the server grew by until all clients had connected and got one event.
    pub(super) connected: u64,
    /// How many bytes the server grew by until the end.
    pub(super) peak: u64,
    pub(super) paced: FanoutPhase,
    pub(super) flat_out: FanoutPhase,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct FanoutPhase {
    pub(super) events: u64,
    pub(super) deliveries: u64,
    pub(super) bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) server_cpu: Duration,
    pub(super) load_cpu: Duration,
    /// Events that a client did not get.
    pub(super) lost: u64,
    /// Events that a client got again, or behind a later one.
    pub(super) duplicates: u64,
    /// Pairs of a latency in nanoseconds and its count.
    pub(super) latencies: Vec<(u64, u64)>,
}

/// Adds the figures of another part; sizes are the larger of both.
impl AddAssign for FanoutResult {
    fn add_assign(&mut self, other: Self) {
        self.connected = self.connected.max(other.connected);
        self.peak = self.peak.max(other.peak);
        self.paced += other.paced;
        self.flat_out += other.flat_out;
    }
}

impl AddAssign for FanoutPhase {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.deliveries += other.deliveries;
        self.bytes += other.bytes;
        self.elapsed += other.elapsed;
        self.server_cpu += other.server_cpu;
        self.load_cpu += other.load_cpu;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.latencies.extend(other.latencies);
    }
}

impl FanoutPhase {
    /// The figures since `start`; the latencies are those of the end alone.
    pub(super) fn since(self, start: &Self) -> Self {
        Self {
            events: self.events - start.events,
            deliveries: self.deliveries - start.deliveries,
            bytes: self.bytes - start.bytes,
            elapsed: self.elapsed.saturating_sub(start.elapsed),
            server_cpu: self.server_cpu.saturating_sub(start.server_cpu),
            load_cpu: self.load_cpu.saturating_sub(start.load_cpu),
            lost: self.lost - start.lost,
            duplicates: self.duplicates - start.duplicates,
            latencies: self.latencies,
        }
    }

    /// CPU time of the server for one delivery, in µs, publishing included.
    fn server_micros(&self) -> f64 {
        self.server_cpu.as_secs_f64() * 1e6 / self.deliveries.max(1) as f64
    }

    /// CPU time as a share of one core.
    fn share(&self, cpu: Duration) -> String {
        format!("{:.0} %", 100.0 * cpu.as_secs_f64() / self.elapsed.as_secs_f64())
    }

    fn histogram(&self) -> Histogram<u64> {
        let mut all = histogram();
        for (nanos, count) in &self.latencies {
            // Cannot fail: the histogram resizes itself.
            let _ = all.record_n(*nanos, *count);
        }
        all
    }
}
