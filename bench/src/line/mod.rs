//! The speed of a lock, of a record and of the answer to a webhook for a LINE bot.

mod figures;
mod webhooks;

use std::time::Duration;

use hapax_workload::{BenchPlan, BenchSpan, MarkdownTable, cell, measure};

use crate::process::HapaxBinary;
use crate::store_server::StoreServer;
use crate::{RunArgs, progress, say};
use figures::LineFigure;
use webhooks::LineBot;

/// The warm-up before each part.
const WARM_UP: Duration = Duration::from_millis(500);

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(hapax: &HapaxBinary, run: &RunArgs) -> anyhow::Result<()> {
    let hapax = hapax.path()?;
    say(
        "## LINE\n\nThe original bots' figures: a lock operation below 1 ms; reading and writing a \
         record below 50 ms for 95 of 100, more than 1,000 reads and 500 writes in a second. A lock \
         is taken and released; a record is the last transaction of a user (about 400 bytes), \
         written with a TTL of an hour.\n",
    )?;
    let (mut table, mut gateway) = (MarkdownTable::default(), MarkdownTable::default());
    for engine in run.engines() {
        let server = StoreServer::start(engine)?;
        let store = server.store("figures").await?;
        for tasks in run.tasks.iter().copied() {
            let plan = BenchPlan::new(tasks, BenchSpan::Time(run.seconds)).warm_up(WARM_UP);
            for figure in LineFigure::ALL {
                let measured = measure(figure.operation(&store).await?, &plan).await?;
                table.row([
                    ("store", engine.name().to_owned()),
                    ("operation", figure.name().to_owned()),
                    ("tasks", tasks.to_string()),
                    ("ops/s", cell::rate(measured.per_second())),
                    ("p50", cell::latency(measured.p50())),
                    ("p95", cell::latency(measured.p95())),
                    ("p99", cell::latency(measured.p99())),
                    ("aim", if figure.is_met(&measured) { "met" } else { "missed" }.to_owned()),
                ]);
                progress();
            }
            let bot = LineBot::start(&hapax, &server.url(&format!("gateway{tasks}"))).await?;
            let (measured, handled) = bot.measure(&server, tasks, run.seconds).await?;
            gateway.row([
                ("store", engine.name().to_owned()),
                ("connections", tasks.to_string()),
                ("webhooks/s", cell::rate(measured.per_second())),
                ("p50", cell::latency(measured.p50())),
                ("p99", cell::latency(measured.p99())),
                ("handled/s", cell::rate(handled)),
                ("CPU gateway", cell::micros(measured.server_cpu_each(0))),
                ("CPU store", cell::micros(measured.server_cpu_each(1))),
            ]);
            progress();
        }
    }
    say(table)?;
    say(
        "### From webhook to 200\n\n`hapax line` with its default settings (log level error); each \
         webhook has one event of another user. It is answered when the event is stored; *handled* \
         is the rate at which a bot that does nothing gets them, until the last one.\n",
    )?;
    say(gateway)?;
    Ok(())
}
