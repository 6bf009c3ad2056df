//! Each store beside its raw engine.

use std::time::Duration;

use hapax_bench::{Failure, Plan, Span, Table, Workload, on_store};

use crate::arena::{Arena, Engine};
use crate::turns::{self, PARTS, take_turns};
use crate::{progress, say};

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
    let mut table = turns::table("workload");
    warm_up(arena, tasks).await?;
    for workload in Workload::ALL {
        for tasks in tasks {
            let plan = Plan::new(*tasks, Span::Time(time / PARTS))
                .warm_up(WARM_UP)
                .servers([arena.servers.clone()]);
            let hapax = async || on_store(arena.store.clone(), workload, &plan).await;
            let raw = arena.raw.as_ref().map(|raw| async || raw.measure(workload, &plan).await);
            let (hapax, raw) = take_turns(hapax, raw).await?;
            table.row(turns::row(workload.name(), *tasks, &hapax, raw.as_ref()));
            progress(".");
        }
    }
    progress("\n");
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
