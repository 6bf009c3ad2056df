//! Each store beside its raw engine.

use std::io::Write;
use std::time::Duration;

use hapax_bench::{Failure, Measured, Plan, Span, Table, Workload, cell, on_store};

use crate::arena::{Arena, Engine};
use crate::say;

/// Into how many parts each side's time is cut. Raw, hapax, hapax, raw, and again: what the machine
/// does meanwhile happens to both.
const PARTS: u32 = 4;
/// Before each part.
const WARM_UP: Duration = Duration::from_millis(150);
/// Before the first line, so that files have grown to the size that they keep.
const FIRST_WARM_UP: Duration = Duration::from_millis(1_500);

pub(crate) async fn compare(
    engines: &[Engine],
    tasks: &[usize],
    seconds: Duration,
) -> anyhow::Result<()> {
    for engine in engines {
        let arena = Arena::open(*engine).await?;
        say(&format!("## {}\n", arena.title))?;
        let table = measure_all(&arena, tasks, seconds).await?;
        say(&table.to_string())?;
    }
    Ok(())
}

async fn measure_all(arena: &Arena, tasks: &[usize], time: Duration) -> Result<Table, Failure> {
    let mut table = Table::new([
        "workload",
        "tasks",
        "hapax ops/s",
        "raw ops/s",
        "ratio",
        "p50",
        "p99",
        "raw p50",
        "client CPU µs/op",
        "server CPU µs/op",
        "raw client",
        "raw server",
    ]);
    warm_up(arena, tasks).await?;
    for workload in Workload::ALL {
        for tasks in tasks {
            let plan = Plan::new(*tasks, Span::Time(time / PARTS))
                .warm_up(WARM_UP)
                .servers([arena.servers.clone()]);
            let (hapax, raw) = side_by_side(arena, workload, &plan).await?;
            table.row(row(workload, *tasks, &hapax, raw.as_ref()));
            // Progress, where somebody watches.
            let _ = write!(std::io::stderr(), ".");
        }
    }
    let _ = writeln!(std::io::stderr());
    Ok(table)
}

async fn warm_up(arena: &Arena, tasks: &[usize]) -> Result<(), Failure> {
    let most = tasks.iter().copied().max().unwrap_or(1);
    let plan = Plan::new(most, Span::Time(FIRST_WARM_UP));
    on_store(arena.store.clone(), Workload::Command, &plan).await?;
    if let Some(raw) = &arena.raw {
        raw.measure(Workload::Command, &plan).await?;
    }
    Ok(())
}

async fn side_by_side(
    arena: &Arena,
    workload: Workload,
    plan: &Plan,
) -> Result<(Measured, Option<Measured>), Failure> {
    let (mut hapax, mut raw) = (None, None);
    for part in 0..PARTS {
        let raw_first = part % 2 == 0;
        if raw_first {
            add(&mut raw, measure_raw(arena, workload, plan).await?);
        }
        add(&mut hapax, Some(on_store(arena.store.clone(), workload, plan).await?));
        if !raw_first {
            add(&mut raw, measure_raw(arena, workload, plan).await?);
        }
    }
    Ok((hapax.expect("there is at least one part"), raw))
}

async fn measure_raw(
    arena: &Arena,
    workload: Workload,
    plan: &Plan,
) -> Result<Option<Measured>, Failure> {
    match &arena.raw {
        Some(raw) => raw.measure(workload, plan).await.map(Some),
        None => Ok(None),
    }
}

fn add(sum: &mut Option<Measured>, part: Option<Measured>) {
    *sum = match (sum.take(), part) {
        (Some(sum), Some(part)) => Some(sum.and(&part)),
        (one, other) => one.or(other),
    };
}

fn row(workload: Workload, tasks: usize, hapax: &Measured, raw: Option<&Measured>) -> Vec<String> {
    let of_raw = |show: &dyn Fn(&Measured) -> String| raw.map_or_else(|| "—".into(), show);
    vec![
        workload.name().to_owned(),
        tasks.to_string(),
        cell::rate(hapax.per_second()),
        of_raw(&|raw| cell::rate(raw.per_second())),
        of_raw(&|raw| format!("{:.2}", hapax.per_second() / raw.per_second())),
        cell::latency(hapax.p50()),
        cell::latency(hapax.p99()),
        of_raw(&|raw| cell::latency(raw.p50())),
        cell::micros(Some(hapax.client_cpu_each())),
        cell::micros(hapax.server_cpu_each(0)),
        of_raw(&|raw| cell::micros(Some(raw.client_cpu_each()))),
        of_raw(&|raw| cell::micros(raw.server_cpu_each(0))),
    ]
}
