//! Publishing beside the raw engine.

mod publishing;
mod raw;

use std::sync::Arc;

use hapax_workload::MarkdownTable;

use crate::raw::measure_batches;
use crate::raw::sqlite::BATCH;
use crate::store_server::{Engine, POOL, StoreServer};
use crate::turns::{compare_with_raw, plan};
use crate::{RunArgs, say};
use publishing::{EventPublisher, PublishOperation};

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    say(
        "## Publishing\n\nEvents of about 200 bytes, ten for each job, one publish each; answered \
         when the store has it for good.\n",
    )?;
    for engine in run.engines() {
        let mut table = MarkdownTable::default();
        let mut description = String::new();
        for tasks in run.tasks.iter().copied() {
            // Start a new server for each line, so that earlier events do not slow it down.
            let server = StoreServer::start(engine)?;
            description = server.description();
            let bus: Arc<dyn EventPublisher> =
                Arc::new(publishing::bus(server.store("hapax").await?));
            let raw = raw::publisher(&server).await?;
            let plan = plan(&server, tasks, run.seconds);
            let measure = async |publisher: &Arc<dyn EventPublisher>| {
                measure_batches(Arc::new(PublishOperation::new(publisher, tasks)), &plan).await
            };
            compare_with_raw(
                &mut table,
                (engine.name(), "publish"),
                &plan,
                async || measure(&bus).await,
                raw.as_ref().map(|raw| async || measure(raw).await),
            )
            .await?;
        }
        let raw = raw_description(engine);
        say(format_args!("### {}\n\n{description}; {raw}\n\n{table}", engine.name()))?;
    }
    Ok(())
}

fn raw_description(engine: Engine) -> String {
    match engine {
        Engine::Memory => "nothing to compare with".into(),
        Engine::Sqlite => format!("raw: one thread that inserts, up to {BATCH} events in a commit"),
        Engine::Redis => "raw: a usual worker script alone, over one multiplexed connection; \
                          hapax does the router's work in the same step (aim: 0.70 of it)"
            .into(),
        Engine::Postgres => format!(
            "both {POOL} connections; raw: one prepared insert and one commit for each event"
        ),
    }
}
