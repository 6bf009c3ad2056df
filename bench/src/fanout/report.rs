//! What came out, as tables.

use std::time::Duration;

use hapax_bench::{Table, cell};

use super::outcome::{Outcome, Phase};
use super::subject::Kind;

/// One server with one crowd, measured.
pub(super) struct Line {
    pub(super) kind: Kind,
    pub(super) clients: usize,
    pub(super) outcome: Outcome,
}

pub(super) fn tables(lines: &[Line]) -> String {
    let paced = table("at a fixed rate", lines, |outcome| &outcome.paced);
    let flat_out = table("as fast as it goes", lines, |outcome| &outcome.flat_out);
    format!("{paced}\n{flat_out}\n{}\n{}", memory(lines), aims(lines))
}

fn table(title: &str, lines: &[Line], phase: impl Fn(&Outcome) -> &Phase) -> Table {
    let mut table = Table::new([
        title,
        "clients",
        "events/s",
        "deliveries/s",
        "server CPU µs/delivery",
        "server's core busy",
        "load busy",
        "p50",
        "p99",
        "bytes/delivery",
        "lost",
        "twice",
    ]);
    for line in lines {
        let phase = phase(&line.outcome);
        let latencies = phase.histogram();
        let quantile = |q| cell::latency(Duration::from_nanos(latencies.value_at_quantile(q)));
        table.row([
            line.kind.name().to_owned(),
            line.clients.to_string(),
            cell::rate(phase.events_per_second()),
            cell::rate(phase.per_second()),
            format!("{:.2}", phase.server_micros()),
            phase.share(phase.server_cpu),
            phase.share(phase.load_cpu),
            quantile(0.50),
            quantile(0.99),
            phase.bytes_each().to_string(),
            phase.lost.to_string(),
            phase.duplicates.to_string(),
        ]);
    }
    table
}

fn memory(lines: &[Line]) -> Table {
    let mut table = Table::new(["memory", "clients", "kB/connection", "kB/connection at the end"]);
    for line in lines {
        let each = |bytes| format!("{:.1}", kilobytes_each(bytes, line.clients));
        let Outcome { connected, peak, .. } = line.outcome;
        let name = line.kind.name().to_owned();
        table.row([name, line.clients.to_string(), each(connected), each(peak)]);
    }
    table
}

fn kilobytes_each(bytes: u64, clients: usize) -> f64 {
    bytes as f64 / 1024.0 / clients.max(1) as f64
}

fn aims(lines: &[Line]) -> Table {
    let mut table = Table::new(["aim", "clients", "seen", "met"]);
    let of = |kind, clients| {
        let found = lines.iter().find(|line| line.kind == kind && line.clients == clients);
        found.map(|line| &line.outcome)
    };
    for line in lines.iter().filter(|line| line.kind == Kind::Hapax) {
        let (hapax, clients) = (&line.outcome, line.clients);
        let mut row = |aim: &str, seen: String, met: bool| {
            table.row([aim, &clients.to_string(), &seen, if met { "yes" } else { "NO" }]);
        };
        if let Some(nchan) = of(Kind::Nchan, clients) {
            let ratio = |phase: fn(&Outcome) -> &Phase| {
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
