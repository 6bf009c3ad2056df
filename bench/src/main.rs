//! What hapax costs beside the raw engine, in one run.
//!
//! ```text
//! cargo run --release -p hapax-bench -- [--seconds 2] [--tasks 1,64,256] [--only redis]
//! ```
//!
//! Starts servers of its own on loopback, in temporary folders. For every workload hapax and the
//! raw engine take turns (raw, hapax, hapax, raw), so that a machine that gets slower or faster
//! meanwhile does so for both.

mod arena;
mod machine;
mod raw;

use std::io::Write;
use std::time::Duration;

use clap::Parser;
use hapax_bench::{Failure, Measured, Plan, Span, Table, Workload, cell, on_store};

use arena::{Arena, Engine};

/// Measures hapax beside the raw engine of each store.
#[derive(Parser)]
struct Args {
    /// How long hapax, and the raw engine, work for each line of the tables.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// How many tasks work at once, for each a line of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    tasks: Vec<usize>,
    /// Only these stores.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Engine>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let seconds = Duration::try_from_secs_f64(args.seconds)?;
    say(&format!("{}\n", machine::facts()))?;
    for engine in Engine::ALL {
        if args.only.is_empty() || args.only.contains(&engine) {
            let arena = Arena::open(engine).await?;
            say(&format!("## {}\n", arena.title))?;
            let table = measure_all(&arena, &args.tasks, seconds).await?;
            say(&table.to_string())?;
        }
    }
    Ok(())
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
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
    for workload in Workload::ALL {
        for tasks in tasks {
            let plan = Plan::new(*tasks, Span::Time(time / 2)).servers(arena.servers.clone());
            let (hapax, raw) = side_by_side(arena, workload, &plan).await?;
            table.row(row(workload, *tasks, &hapax, raw.as_ref()));
            // Progress, where somebody watches.
            let _ = write!(std::io::stderr(), ".");
        }
    }
    let _ = writeln!(std::io::stderr());
    Ok(table)
}

async fn side_by_side(
    arena: &Arena,
    workload: Workload,
    plan: &Plan,
) -> Result<(Measured, Option<Measured>), Failure> {
    let hapax = || on_store(arena.store.clone(), workload, plan);
    let Some(raw) = &arena.raw else {
        return Ok((hapax().await?.and(&hapax().await?), None));
    };
    let raw_first = raw.measure(workload, plan).await?;
    let both = hapax().await?.and(&hapax().await?);
    let raw_last = raw.measure(workload, plan).await?;
    Ok((both, Some(raw_first.and(&raw_last))))
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
        cell::micros(hapax.server_cpu_each()),
        of_raw(&|raw| cell::micros(Some(raw.client_cpu_each()))),
        of_raw(&|raw| cell::micros(raw.server_cpu_each())),
    ]
}
