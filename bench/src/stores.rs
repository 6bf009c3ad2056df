//! Each store beside its raw engine.

use std::time::Duration;

use hapax_workload::{BenchPlan, BenchSpan, MarkdownTable, Workload, measure_on_store};

use crate::raw::RawEngine;
use crate::store_server::StoreServer;
use crate::turns::{compare_with_raw, plan};
use crate::{RunArgs, raw, say};

/// The warm-up before the first line, so that files have grown to their final size.
const FIRST_WARM_UP: Duration = Duration::from_millis(1_500);

pub(crate) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    for engine in run.engines() {
        let server = StoreServer::start(engine)?;
        let store = server.store("hapax").await?;
        let raw = <dyn RawEngine>::open(&server).await?;
        say(format_args!("## {}; {}\n", server.description(), raw::description(engine)))?;
        let most = run.tasks.iter().copied().max().unwrap_or(1);
        let warm_up = BenchPlan::new(most, BenchSpan::Time(FIRST_WARM_UP));
        measure_on_store(store.clone(), Workload::Command, &warm_up).await?;
        if let Some(raw) = &raw {
            raw::measure(raw, Workload::Command, &warm_up).await?;
        }
        let mut table = MarkdownTable::default();
        for workload in Workload::ALL {
            for tasks in &run.tasks {
                let plan = plan(&server, *tasks, run.seconds);
                compare_with_raw(
                    &mut table,
                    ("workload", workload.name()),
                    &plan,
                    async || measure_on_store(store.clone(), workload, &plan).await,
                    raw.as_ref().map(|raw| async || raw::measure(raw, workload, &plan).await),
                )
                .await?;
            }
        }
        say(table)?;
    }
    Ok(())
}
