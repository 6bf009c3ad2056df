//! `hapax bench`: the speed of this machine and store.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use hapax::Store;
use hapax_workload::{
    BenchPlan, BenchSpan, MarkdownTable, Workload, cell, clean_up, measure_on_store,
};
use indicatif::ProgressBar;

use crate::client::{duration, print_line, print_note, progress_bar};
use crate::daemon::default_store_config;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax bench --store sqlite:hapax.db
  hapax bench --store redis://127.0.0.1:6379 --seconds 5 --tasks 1,16,256

One operation is everything that the workload names: a claim and its settling, a read and the write
after it. CPU is the time of this process for one operation; a server's own comes on top. The keys
belong to the tenant `hapax-bench`, meet no other keys, and are deleted at the end.")]
pub(crate) struct BenchArgs {
    /// The store: sqlite:FILE, redis://…, postgres://…, memory:
    #[arg(long, env = "HAPAX_STORE", value_name = "URL", default_value = "sqlite:hapax.db")]
    #[arg(hide_env_values = true)]
    store: String,
    /// How long each line of the table takes
    #[arg(long, value_parser = seconds, default_value = "2")]
    seconds: Duration,
    /// How many tasks work at once; each number gets its own line
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=4096))]
    tasks: Vec<u16>,
}

/// A number of seconds, or a duration with its unit.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(number) => Duration::try_from_secs_f64(number).map_err(|error| error.to_string()),
        Err(_) => duration(text),
    }
}

pub(crate) async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    let store = hapax::open(&args.store, &default_store_config())?;
    store.ping().await?;
    let lines = (Workload::ALL.len() * args.tasks.len()) as u64;
    let bar = progress_bar(Some(lines), "{bar:30} {pos}/{len} {msg} ({eta} left)");
    let table = measure_all(&store, &args, &bar).await;
    bar.set_message("cleaning up");
    let cleaned = clean_up(&*store).await;
    bar.finish_and_clear();
    print_note(format_args!("hapax bench: {}\n", store.name()));
    print_line(table?);
    if let Err(error) = cleaned {
        print_note(format_args!("hapax: what is left expires by itself: {error}"));
    }
    Ok(ExitCode::SUCCESS)
}

async fn measure_all(
    store: &Arc<dyn Store>,
    args: &BenchArgs,
    bar: &ProgressBar,
) -> Result<MarkdownTable, hapax_workload::BenchError> {
    let mut table = MarkdownTable::default();
    for workload in Workload::ALL {
        for tasks in &args.tasks {
            bar.set_message(format!("{}, {tasks} tasks", workload.name()));
            let plan = BenchPlan::new(usize::from(*tasks), BenchSpan::Time(args.seconds));
            let measured = measure_on_store(store.clone(), workload, &plan).await?;
            table.row([
                ("workload", workload.name().to_owned()),
                ("tasks", tasks.to_string()),
                ("ops/s", cell::rate(measured.per_second())),
                ("p50", cell::latency(measured.p50())),
                ("p99", cell::latency(measured.p99())),
                ("CPU µs/op", cell::micros(Some(measured.client_cpu_each()))),
            ]);
            bar.inc(1);
        }
    }
    Ok(table)
}
