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
}

/// Selects first runs or replays.
type RunKind = fn(&HttpResult) -> &Measurement;
const FIRST: RunKind = |line| &line.first;
const REPLAY: RunKind = |line| &line.replay;

impl AddAssign for HttpResult {
    fn add_assign(&mut self, other: Self) {
        self.first += other.first;
        self.replay += other.replay;
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

/// A table of first runs and one of replays.
pub(super) fn tables(lines: &[HttpResult]) -> String {
    let first = table("first runs (a fresh key each)", lines, FIRST);
    let replays = table("replays (one settled key)", lines, REPLAY);
    format!("{first}\n{replays}")
}

fn table(title: &str, lines: &[HttpResult], half: RunKind) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    for line in lines {
        let measured = half(line);
        table.row([
            (title, line.role.to_string()),
            ("requests/s", cell::rate(measured.per_second())),
            ("p50", cell::latency(measured.p50())),
            ("p99", cell::latency(measured.p99())),
            ("server CPU µs", cell::micros(measured.server_cpu_each(SERVER))),
            ("store CPU µs", cell::micros(measured.server_cpu_each(STORE))),
            ("both", format!("{:.1}", cpu(measured))),
            ("over bare handler or nginx", over(lines, line, half)),
        ]);
    }
    table
}

/// `+12.3 (×1.4)`.
fn over(lines: &[HttpResult], line: &HttpResult, half: RunKind) -> String {
    let baseline = line.role.baseline().and_then(|role| find(lines, role));
    let Some(baseline) = baseline else { return "—".into() };
    let (own, less) = (cpu(half(line)), cpu(half(baseline)));
    format!("{:+.1} (×{:.2})", own - less, own / less)
}

/// The figure for an aim, and whether it is met. `None` where it was not measured.
type Seen = Option<(String, bool)>;

pub(super) fn aims(lines: &[HttpResult]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    let aims: [(&str, Seen); 5] = [
        (
            "layer on memory ≤ 15 µs CPU over the bare handler",
            over_bare(lines, Engine::Memory, 15.0),
        ),
        (
            "layer on Redis ≤ 45 µs CPU over the bare handler, Redis included",
            over_bare(lines, Engine::Redis, 45.0),
        ),
        ("a replay costs less CPU than a first run", replays_cost_less(lines)),
        ("proxy on memory ≤ 2× nginx's CPU per request", beside_nginx(lines, 2.0)),
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

fn over_bare(lines: &[HttpResult], engine: Engine, most: f64) -> Seen {
    let (layer, bare) = (find(lines, HttpRole::Layer(engine))?, find(lines, HttpRole::Bare)?);
    let over = |half: RunKind| cpu(half(layer)) - cpu(half(bare));
    let (first, replay) = (over(FIRST), over(REPLAY));
    let all = cpu(&layer.first);
    let seen = format!("{first:.1} (replay {replay:.1}; {all:.1} with the handler)");
    Some((seen, first <= most && replay <= most))
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

fn beside_nginx(lines: &[HttpResult], most: f64) -> Seen {
    let proxy = find(lines, HttpRole::Proxy(Engine::Memory))?;
    let nginx = find(lines, HttpRole::Nginx)?;
    let times = |half: RunKind| cpu(half(proxy)) / cpu(half(nginx));
    let (first, replay) = (times(FIRST), times(REPLAY));
    Some((format!("×{first:.2} (replay ×{replay:.2})"), first <= most && replay <= most))
}

fn first_runs(lines: &[HttpResult], least: f64) -> Seen {
    let rate = find(lines, HttpRole::Layer(Engine::Sqlite))?.first.per_second();
    Some((format!("{rate:.0}"), rate >= least))
}
