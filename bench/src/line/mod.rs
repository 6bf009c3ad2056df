//! The speed of a lock, of a record and of the answer to a webhook for a LINE bot.

mod figures;
mod webhooks;

use std::time::Duration;

use hapax_workload::{BenchPlan, BenchSpan, MarkdownTable, Measurement, cell, measure};

use crate::process::HapaxBinary;
use crate::store_server::{Engine, StoreServer};
use crate::{progress, say};
use figures::LineFigure;
use webhooks::LineBot;

/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(500);

/// The arguments of `hapax-bench line`.
#[derive(clap::Args)]
pub(crate) struct LineBenchArgs {
    #[command(flatten)]
    hapax: HapaxBinary,
}

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(
    args: &LineBenchArgs,
    engines: &[Engine],
    tasks: &[usize],
    seconds: Duration,
) -> anyhow::Result<()> {
    let hapax = args.hapax.path()?;
    say(
        "## LINE\n\nThe original bots' figures: a lock operation below 1 ms; reading and writing a \
         record below 50 ms for 95 of 100, more than 1,000 reads and 500 writes in a second. A lock \
         is taken and released; a record is the last transaction of a user (about 400 bytes), \
         written with a TTL of an hour.\n",
    )?;
    let mut table =
        MarkdownTable::new(["store", "operation", "tasks", "ops/s", "p50", "p95", "p99", "aim"]);
    let mut gateway = MarkdownTable::new([
        "store",
        "connections",
        "webhooks/s",
        "p50",
        "p99",
        "handled/s",
        "CPU gateway",
        "CPU store",
    ]);
    for engine in engines {
        let server = StoreServer::start(*engine)?;
        let store = server.store("figures").await?;
        for tasks in tasks.iter().copied() {
            let plan = BenchPlan::new(tasks, BenchSpan::Time(seconds)).warm_up(WARM_UP);
            for figure in LineFigure::ALL {
                let measured = measure(figure.operation(&store).await?, &plan).await?;
                table.row(figure_row(*engine, figure, tasks, &measured));
                progress(".");
            }
            let bot = LineBot::start(&hapax, &server.url(&format!("gateway{tasks}"))).await?;
            gateway.row(bot.row(*engine, &server, tasks, seconds).await?);
            progress(".");
        }
    }
    progress("\n");
    say(&table.to_string())?;
    say(
        "### From webhook to 200\n\n`hapax line` with its default settings (log level error); each \
         webhook has one event of another user. It is answered when the event is stored; *handled* \
         is the rate at which a bot that does nothing gets them, until the last one.\n",
    )?;
    say(&gateway.to_string())?;
    Ok(())
}

fn figure_row(
    engine: Engine,
    figure: LineFigure,
    tasks: usize,
    measured: &Measurement,
) -> [String; 8] {
    let verdict = if figure.is_met(measured) { "met" } else { "missed" };
    [
        engine.name().into(),
        figure.name().into(),
        tasks.to_string(),
        cell::rate(measured.per_second()),
        cell::latency(measured.p50()),
        cell::latency(measured.p95()),
        cell::latency(measured.p99()),
        verdict.into(),
    ]
}
