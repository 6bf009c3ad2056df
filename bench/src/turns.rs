//! Measurements in turns, so that a machine that gets slower or faster affects all sides alike.

use std::ops::AddAssign;
use std::time::Duration;

use hapax_core::Token;
use hapax_workload::{BenchError, BenchPlan, BenchSpan, MarkdownTable, Measurement, cell};

use crate::progress;
use crate::store_server::StoreServer;

/// The rounds of hapax and a raw engine.
const RAW_ROUNDS: u32 = 4;
/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(300);

/// An id that no other run has, for new keys and events.
pub(crate) fn fresh_run_id() -> String {
    Token::random().as_str()[..12].to_owned()
}

/// Measures each case once in a round, in reverse order in every second round, and adds up the parts
/// of each case.
pub(crate) async fn in_rounds<M: AddAssign, E>(
    rounds: u32,
    cases: usize,
    measure: impl AsyncFn(usize, u32) -> Result<M, E>,
) -> Result<Vec<M>, E> {
    let mut sums: Vec<Option<M>> = (0..cases).map(|_| None).collect();
    for round in 0..rounds {
        for position in 0..cases {
            let case = if round % 2 == 0 { position } else { cases - 1 - position };
            let part = measure(case, round).await?;
            match &mut sums[case] {
                Some(sum) => *sum += part,
                none => *none = Some(part),
            }
            progress();
        }
    }
    Ok(sums.into_iter().flatten().collect())
}

/// The plan of one part of a comparison with a raw engine, which has `time` for each side.
pub(crate) fn plan(server: &StoreServer, tasks: usize, time: Duration) -> BenchPlan {
    BenchPlan::new(tasks, BenchSpan::Time(time / RAW_ROUNDS))
        .warm_up(WARM_UP)
        .servers([server.processes()])
}

/// Measures hapax and the raw engine, if there is one, in turns, and adds a row to the table. `name`
/// is the row's in the column `title`.
pub(crate) async fn compare_with_raw(
    table: &mut MarkdownTable,
    (title, name): (&str, &str),
    plan: &BenchPlan,
    hapax: impl AsyncFn() -> Result<Measurement, BenchError>,
    raw: Option<impl AsyncFn() -> Result<Measurement, BenchError>>,
) -> Result<(), BenchError> {
    let cases = 1 + usize::from(raw.is_some());
    let sides = in_rounds(RAW_ROUNDS, cases, async |case, _| match &raw {
        Some(raw) if case == 1 => raw().await,
        _ => hapax().await,
    });
    let sides = sides.await?;
    let (hapax, raw) = (&sides[0], sides.get(1));
    let of_raw = |show: &dyn Fn(&Measurement) -> String| raw.map_or_else(|| "—".into(), show);
    table.row([
        (title, name.to_owned()),
        ("tasks", plan.tasks.to_string()),
        ("hapax ops/s", cell::rate(hapax.per_second())),
        ("raw ops/s", of_raw(&|raw| cell::rate(raw.per_second()))),
        ("ratio", of_raw(&|raw| format!("{:.2}", hapax.per_second() / raw.per_second()))),
        ("p50", cell::latency(hapax.p50())),
        ("p99", cell::latency(hapax.p99())),
        ("raw p50", of_raw(&|raw| cell::latency(raw.p50()))),
        ("client CPU µs/op", cell::micros(Some(hapax.client_cpu_each()))),
        ("server CPU µs/op", cell::micros(hapax.server_cpu_each(0))),
        ("raw client", of_raw(&|raw| cell::micros(Some(raw.client_cpu_each())))),
        ("raw server", of_raw(&|raw| cell::micros(raw.server_cpu_each(0)))),
    ]);
    Ok(())
}
