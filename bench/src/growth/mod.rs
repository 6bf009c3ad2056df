//! How cost grows with what is stored: keys, expired rows, jobs and followers, outbox rows, processes.

pub(crate) mod fill;
mod followers;
pub(crate) mod keys;
mod operator;
mod outbox;
mod processes;
mod raw_first_run;
mod raw_read;
mod sweep;
mod work;

use std::time::Duration;

use anyhow::Context;
use clap::ValueEnum;
use hapax_workload::{MarkdownTable, Measurement, cell};

use crate::store_server::{Engine, StoreServer};
use crate::{RunArgs, say};
use fill::{FillExpiry, FilledStore, ensure_room};
use keys::KeyStage;
use operator::OperatorCall;
use work::{GrowthWork, TASKS, measure_median, median_of_runs};

/// The arguments of `hapax-bench growth`.
#[derive(clap::Args)]
pub(crate) struct GrowthArgs {
    /// How many keys the store has, ascending, for each a line of its own.
    #[arg(long, value_delimiter = ',', default_value = "1e4,1e6,1e7", value_parser = parse_keys)]
    keys: Vec<u64>,
    /// Only these parts.
    #[arg(long, value_enum, value_delimiter = ',')]
    part: Vec<GrowthPart>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GrowthPart {
    /// Throughput, latency, CPU and bytes with few and many keys, what an operator looks at then, and
    /// sweeping.
    Keys,
    /// Many jobs and followers.
    Followers,
    /// A long outbox on PostgreSQL, with an old snapshot.
    Outbox,
    /// Four server processes on one PostgreSQL and one Redis.
    Processes,
}

/// Reads `1e6` or `1000000`.
pub(crate) fn parse_keys(text: &str) -> anyhow::Result<u64> {
    let number: f64 = text.parse()?;
    anyhow::ensure!((100.0..=1e9).contains(&number), "between 100 and 1e9 keys");
    Ok(number as u64)
}

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(args: &GrowthArgs, run: &RunArgs) -> anyhow::Result<()> {
    for part in GrowthPart::value_variants() {
        if !args.part.is_empty() && !args.part.contains(part) {
            continue;
        }
        match part {
            GrowthPart::Keys => measure_keys(args, run).await?,
            GrowthPart::Followers => followers::compare(run).await?,
            GrowthPart::Outbox => outbox::compare(run).await?,
            GrowthPart::Processes => processes::compare(run).await?,
        }
    }
    Ok(())
}

/// The names of the lines of the raw engine, which have no aim.
const RAW_READ: &str = "raw read of any key";
const RAW_FIRST_RUN: &str = "raw insert + update";

/// The share of the rate with the fewest keys that should be left with the most.
const fn least_share(engine: Engine) -> f64 {
    match engine {
        Engine::Postgres => 0.8,
        _ => 0.9,
    }
}

/// The figures with one number of keys.
struct SizeResult {
    keys: u64,
    bytes_per_key: u64,
    /// Each with its name; the same ones for every number of keys.
    works: Vec<(&'static str, Measurement)>,
    /// Times in the order of [`OperatorCall::ALL`].
    calls: Vec<String>,
}

async fn measure_keys(args: &GrowthArgs, run: &RunArgs) -> anyhow::Result<()> {
    let mut sizes = args.keys.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let most = *sizes.last().context("no --keys")?;
    for engine in run.engines() {
        ensure_room(engine, most)?;
    }
    say(format_args!(
        "## Keys\n\nSettled commands with values of {} bytes, whose names are spread over the whole key \
         space; {TASKS} tasks. Each line is the median of three runs. Bytes are those of the rows as they \
         were filled in, with their indexes. *Raw read of any key* is one read by primary key of the engine alone, from \
         a table with the same rows (in memory: from a map of names to values): its loss with many keys is the engine's. *Raw insert + update* is the same for a \
         first run on SQLite: one thread, 64 rows in a commit.\n",
        work::VALUE.len()
    ))?;
    for engine in run.engines() {
        let server = StoreServer::start(engine)?;
        let filled = FilledStore::open(&server, "hapax").await?;
        let mut results: Vec<SizeResult> = Vec::new();
        let mut stage = KeyStage { number: 0, count: 0 };
        for keys in &sizes {
            let there = results.last().map_or(0, |before| before.keys);
            stage = KeyStage { number: stage.number + 1, count: keys - there };
            results.push(measure_size(&filled, *keys, stage, run.seconds).await?);
        }
        say(format_args!("### {}\n\n{}", engine.name(), throughput(engine, &results)))?;
        say(format_args!(
            "What an operator looks at, the median time of five calls:\n\n{}",
            calls(&results)
        ))?;
        say(format_args!(
            "Claim + settle with {most} keys, alone and while 1000000 expired keys are deleted:\n"
        ))?;
        say(sweep::measure(&filled, stage, run.seconds).await?.table(run.seconds))?;
    }
    Ok(())
}

async fn measure_size(
    filled: &FilledStore<'_>,
    keys: u64,
    stage: KeyStage,
    time: Duration,
) -> anyhow::Result<SizeResult> {
    let before = filled.size().await?;
    filled.fill(stage, FillExpiry::Later).await?;
    let bytes_per_key = filled.size().await?.saturating_sub(before) / stage.count;
    let raw = filled.fill_raw(stage).await?;
    let mut calls = Vec::new();
    for call in OperatorCall::ALL {
        let shown = match call.time(&*filled.store).await {
            Ok(time) => cell::latency(time),
            Err(error) => format!("FAILS: {}", error.label()),
        };
        calls.push(shown);
    }
    let mut works = Vec::new();
    for work in GrowthWork::ALL {
        let measured = measure_median(filled.server, &filled.store, work, stage, time).await?;
        works.push((work.name(), measured));
        // The raw engine is measured directly behind hapax, so that a machine that gets slower affects both.
        if work == GrowthWork::Replay {
            let once = async |time| raw.measure_once(filled.server, time).await;
            works.push((RAW_READ, median_of_runs(time, once).await?));
        }
        if work == GrowthWork::FirstRun && filled.server.engine() == Engine::Sqlite {
            let url = filled.raw_url();
            let once = async |time| raw_first_run::measure_once(filled.server, &url, time).await;
            works.push((RAW_FIRST_RUN, median_of_runs(time, once).await?));
        }
    }
    Ok(SizeResult { keys, bytes_per_key, works, calls })
}

fn throughput(engine: Engine, results: &[SizeResult]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    let Some(first) = results.first() else { return table };
    for (nth, (work, with_fewest)) in first.works.iter().enumerate() {
        for result in results {
            let (_, measured) = &result.works[nth];
            let share = measured.per_second() / with_fewest.per_second();
            let aim = match share >= least_share(engine) {
                _ if [RAW_READ, RAW_FIRST_RUN].contains(work) || result.keys == first.keys => "",
                true => "met",
                false => "NOT met",
            };
            table.row([
                (engine.name(), (*work).to_owned()),
                ("keys", format!("{:e}", result.keys as f64)),
                ("ops/s", cell::rate(measured.per_second())),
                ("of the first", format!("{share:.2}")),
                ("aim", aim.to_owned()),
                ("p50", cell::latency(measured.p50())),
                ("p99", cell::latency(measured.p99())),
                ("client CPU µs/op", cell::micros(Some(measured.client_cpu_each()))),
                ("server CPU µs/op", cell::micros(measured.server_cpu_each(0))),
                ("bytes/key", result.bytes_per_key.to_string()),
            ]);
        }
    }
    table
}

fn calls(results: &[SizeResult]) -> MarkdownTable {
    let mut table = MarkdownTable::default();
    let titles: Vec<_> = results.iter().map(|r| format!("{:e} keys", r.keys as f64)).collect();
    for (nth, call) in OperatorCall::ALL.into_iter().enumerate() {
        let times = results.iter().map(|result| result.calls[nth].clone());
        let cells = titles.iter().map(String::as_str).zip(times);
        table.row([("call", call.name().to_owned())].into_iter().chain(cells));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_with_an_exponent() {
        assert_eq!(parse_keys("1e4").unwrap(), 10_000);
        assert_eq!(parse_keys("250").unwrap(), 250);
        assert!(parse_keys("1e12").is_err() && parse_keys("many").is_err());
    }
}
