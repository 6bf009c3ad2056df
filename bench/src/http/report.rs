//! The tables of `hapax-bench http`.

use std::ops::AddAssign;

use hapax_workload::{MarkdownTable, Measurement, cell};

use super::setup::HttpRole;
use crate::store_server::Engine;

/// The result of one server.
pub(super) struct HttpResult {
    pub(super) role: HttpRole,
    pub(super) first: Measurement,
    pub(super) replay: Measurement,
    /// Requests without a key; not measured where another server's figure stands for this one.
    pub(super) keyless: Option<Measurement>,
}

/// Selects first runs, replays or requests without a key.
type RunKind = fn(&HttpResult) -> Option<&Measurement>;
const FIRST: RunKind = |line| Some(&line.first);
const REPLAY: RunKind = |line| Some(&line.replay);
const KEYLESS: RunKind = |line| line.keyless.as_ref();

impl AddAssign for HttpResult {
    fn add_assign(&mut self, other: Self) {
        self.first += other.first;
        self.replay += other.replay;
        if let (Some(keyless), Some(other)) = (&mut self.keyless, other.keyless) {
            *keyless += other;
        }
    }
}

fn find(lines: &[HttpResult], role: HttpRole) -> Option<&HttpResult> {
    lines.iter().find(|line| line.role == role)
}

/// CPU time of the server under test and its store's server for one request, in µs.
fn cpu(measured: &Measurement) -> f64 {
    let micros =
        |group| measured.server_cpu_each(group).map_or(0.0, |time| time.as_secs_f64() * 1e6);
    micros(SERVER) + micros(STORE)
}

/// The groups of processes, in the order in which they were planned.
const SERVER: usize = 0;
const STORE: usize = 1;

/// A table of first runs, one of replays and one of requests without a key.
pub(super) fn tables(lines: &[HttpResult]) -> String {
    let first = table("first runs (a fresh key each)", lines, FIRST);
    let replays = table("replays (one settled key)", lines, REPLAY);
    let keyless = table("without a key (no store is asked)", lines, KEYLESS);
    format!("{first}\n{replays}\n{keyless}")
}

fn table(title: &str, lines: &[HttpResult], kind: RunKind) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    for line in lines {
        let Some(measured) = kind(line) else { continue };
        table.row([
            (title, line.role.to_string()),
            ("requests/s", cell::rate(measured.per_second())),
            ("p50", cell::latency(measured.p50())),
            ("p99", cell::latency(measured.p99())),
            ("server CPU µs", cell::micros(measured.server_cpu_each(SERVER))),
            ("store CPU µs", cell::micros(measured.server_cpu_each(STORE))),
            ("both", format!("{:.1}", cpu(measured))),
            ("over bare handler or nginx", over(lines, line, kind)),
        ]);
    }
    table
}

/// `+12.3 (×1.40)`, or `—` for a server that is compared with none.
fn over(lines: &[HttpResult], line: &HttpResult, kind: RunKind) -> String {
    let compared = |role| compare(lines, line.role, role, kind);
    match line.role.baseline().and_then(compared) {
        Some((own, baseline)) => {
            let (own, baseline) = (cpu(own), cpu(baseline));
            format!("{:+.2} (×{:.2})", own - baseline, own / baseline)
        }
        None => "—".into(),
    }
}

/// The measurements of a server and of the one that it is compared with.
fn compare(
    lines: &[HttpResult],
    role: HttpRole,
    baseline: HttpRole,
    kind: RunKind,
) -> Option<(&Measurement, &Measurement)> {
    Some((kind(find(lines, role)?)?, kind(find(lines, baseline)?)?))
}

/// The figure for an aim, and whether it is met. `None` where it was not measured.
type Seen = Option<(String, bool)>;

pub(super) fn aims(lines: &[HttpResult]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    let aims: [(&str, Seen); 9] = [
        (
            "layer on memory, first run ≤ 10 µs CPU over the bare handler",
            over_bare(lines, Engine::Memory, FIRST, 10.0),
        ),
        ("layer on memory, replay ≤ 6 µs", over_bare(lines, Engine::Memory, REPLAY, 6.0)),
        ("layer without a key ≤ 0.5 µs", over_bare(lines, Engine::Memory, KEYLESS, 0.5)),
        (
            "layer on Redis, first run ≤ 40 µs, Redis included",
            over_bare(lines, Engine::Redis, FIRST, 40.0),
        ),
        ("proxy on memory, first run ≤ 2× nginx's CPU", beside_nginx(lines, FIRST, 2.0)),
        ("proxy without a key ≤ 1.5× nginx's CPU", beside_nginx(lines, KEYLESS, 1.5)),
        ("proxy on memory, first run: p99 ≤ 3× nginx's", p99_beside_nginx(lines, 3.0)),
        ("a replay costs less CPU than a first run", replays_cost_less(lines)),
        ("layer on SQLite ≥ 10000 durable first runs/s", first_runs(lines, 10_000.0)),
    ];
    for (aim, seen) in aims {
        let (seen, met) = match seen {
            Some((seen, true)) => (seen, "yes"),
            Some((seen, false)) => (seen, "NO"),
            None => ("not measured".into(), "—"),
        };
        table.row([("aim", aim.to_owned()), ("seen", seen), ("met", met.to_owned())]);
    }
    table
}

fn over_bare(lines: &[HttpResult], engine: Engine, kind: RunKind, most: f64) -> Seen {
    let (layer, bare) = compare(lines, HttpRole::Layer(engine), HttpRole::Bare, kind)?;
    let over = cpu(layer) - cpu(bare);
    Some((format!("{over:.1} ({:.1} with the handler)", cpu(layer)), over <= most))
}

fn replays_cost_less(lines: &[HttpResult]) -> Seen {
    let keeping: Vec<&HttpResult> = lines.iter().filter(|line| line.role.keeps_answers()).collect();
    let dearer: Vec<String> = keeping
        .iter()
        .filter(|line| cpu(&line.replay) >= cpu(&line.first))
        .map(|line| line.role.to_string())
        .collect();
    let met = dearer.is_empty();
    let seen = if met {
        format!("on all {}", keeping.len())
    } else {
        format!("not: {}", dearer.join("; "))
    };
    (!keeping.is_empty()).then_some((seen, met))
}

fn proxy_and_nginx(lines: &[HttpResult], kind: RunKind) -> Option<(&Measurement, &Measurement)> {
    compare(lines, HttpRole::Proxy(Engine::Memory), HttpRole::Nginx, kind)
}

fn beside_nginx(lines: &[HttpResult], kind: RunKind, most: f64) -> Seen {
    let (proxy, nginx) = proxy_and_nginx(lines, kind)?;
    let times = cpu(proxy) / cpu(nginx);
    Some((format!("×{times:.2}"), times <= most))
}

fn p99_beside_nginx(lines: &[HttpResult], most: f64) -> Seen {
    let (proxy, nginx) = proxy_and_nginx(lines, FIRST)?;
    let times = proxy.p99().as_secs_f64() / nginx.p99().as_secs_f64();
    Some((format!("×{times:.1}"), times <= most))
}

fn first_runs(lines: &[HttpResult], least: f64) -> Seen {
    let rate = find(lines, HttpRole::Layer(Engine::Sqlite))?.first.per_second();
    Some((format!("{rate:.0}"), rate >= least))
}
