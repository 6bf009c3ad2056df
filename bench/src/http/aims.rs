//! What was aimed at, and what was reached.

use hapax_bench::Table;

use super::report::{Half, Line, cpu, find};
use super::stage::Role;
use crate::arena::Engine;

/// Said of an aim: what was seen, and whether that is enough. `None` where it was not measured.
type Seen = Option<(String, bool)>;

pub(super) fn table(lines: &[Line]) -> Table {
    let mut table = Table::new(["aim", "seen", "met"]);
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
        table.row([aim, &seen, met]);
    }
    table
}

fn over_bare(lines: &[Line], engine: Engine, most: f64) -> Seen {
    let (layer, bare) = (find(lines, Role::Layer(engine))?, find(lines, Role::Bare)?);
    let over = |half: Half| cpu(half(layer)) - cpu(half(bare));
    let (first, replay) = (over(Line::first), over(Line::replay));
    let all = cpu(layer.first());
    let seen = format!("{first:.1} (replay {replay:.1}; {all:.1} with the handler)");
    Some((seen, first <= most && replay <= most))
}

fn replays_cost_less(lines: &[Line]) -> Seen {
    let keeping: Vec<&Line> = lines.iter().filter(|line| line.role.keeps_answers()).collect();
    let dearer: Vec<String> = keeping
        .iter()
        .filter(|line| cpu(line.replay()) >= cpu(line.first()))
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

fn beside_nginx(lines: &[Line], most: f64) -> Seen {
    let proxy = find(lines, Role::Proxy(Engine::Memory))?;
    let nginx = find(lines, Role::Nginx)?;
    let times = |half: Half| cpu(half(proxy)) / cpu(half(nginx));
    let (first, replay) = (times(Line::first), times(Line::replay));
    Some((format!("×{first:.2} (replay ×{replay:.2})"), first <= most && replay <= most))
}

fn first_runs(lines: &[Line], least: f64) -> Seen {
    let rate = find(lines, Role::Layer(Engine::Sqlite))?.first().per_second();
    Some((format!("{rate:.0}"), rate >= least))
}
