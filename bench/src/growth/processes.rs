//! One and four server processes on the same store.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_workload::{
    BenchError, BenchOperation, BenchPlan, BenchSpan, MarkdownTable, ProcessGroup, cell, measure,
};

use super::work::TASKS;
use crate::http::{HttpLoad, LoadKeys, handler};
use crate::process::ServerProcess;
use crate::store_server::{Engine, StoreServer};
use crate::{RunArgs, progress, say};

const WARM_UP: Duration = Duration::from_millis(500);

pub(super) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    say(format_args!(
        "## Server processes\n\nFirst runs through the layer over {TASKS} connections, which are spread over \
         the processes; all of them share one store, and all of it the same cores.\n"
    ))?;
    let mut table = MarkdownTable::default();
    for engine in run.engines().filter(|e| matches!(e, Engine::Redis | Engine::Postgres)) {
        for processes in [1, 4] {
            let server = StoreServer::start(engine)?;
            let url = server.url("processes");
            let start = |_| handler(Some(&url));
            let servers = (0..processes).map(start).collect::<anyhow::Result<Vec<_>>>()?;
            let load = Arc::new(SpreadLoad::connect(&servers).await?);
            let pids = servers.iter().map(ServerProcess::pid);
            let plan = BenchPlan::new(TASKS, BenchSpan::Time(run.seconds))
                .warm_up(WARM_UP)
                .servers([ProcessGroup::new(pids), server.processes()]);
            let measured = measure(load, &plan).await?;
            table.row([
                ("store", engine.name().to_owned()),
                ("processes", processes.to_string()),
                ("requests/s", cell::rate(measured.per_second())),
                ("p50", cell::latency(measured.p50())),
                ("p99", cell::latency(measured.p99())),
                ("server CPU µs", cell::micros(measured.server_cpu_each(0))),
                ("store CPU µs", cell::micros(measured.server_cpu_each(1))),
            ]);
            progress();
        }
    }
    say(table)?;
    Ok(())
}

/// A load of its own for each server.
struct SpreadLoad(Vec<Arc<HttpLoad>>);

impl SpreadLoad {
    async fn connect(servers: &[ServerProcess]) -> Result<Self, BenchError> {
        let mut loads = Vec::new();
        for server in servers {
            loads.push(HttpLoad::to(server.address(), LoadKeys::fresh(), false, TASKS).await?);
        }
        Ok(Self(loads))
    }
}

#[async_trait]
impl BenchOperation for SpreadLoad {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        self.0[task % self.0.len()].run(task, turn).await
    }
}
