//! The cost of the layer over a bare handler, and of the proxy beside nginx.
//!
//! Every server under test is a process of its own, and so is every store's server: their CPU times
//! are told apart from each other and from the load generator's, which is this process.

mod handler;
mod load;
mod report;
mod setup;

use std::time::Duration;

use anyhow::Context;
use hapax_workload::{BenchError, BenchPlan, BenchSpan, Measurement, measure};

use crate::process::HapaxBinary;
use crate::store_server::Engine;
use crate::turns::in_rounds;
use crate::{RunArgs, say};
pub(crate) use handler::{HandlerArgs, serve as serve_handler};
pub(crate) use load::{HttpLoad, LoadKeys};
use report::HttpResult;
pub(crate) use setup::handler;
use setup::{HttpSetup, HttpTarget};

/// Keep-alive connections, each with one request at a time.
const CONNECTIONS: usize = 64;
const ROUNDS: u32 = 2;
/// How much longer than planned a measurement may take before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(hapax: &HapaxBinary, run: &RunArgs) -> anyhow::Result<()> {
    let setup = HttpSetup::start(&hapax.path()?, run)?;
    say(setup.description())?;
    let lines = in_rounds(ROUNDS, setup.servers.len(), async |case, _| {
        measure_one(&setup.servers[case], run.seconds / ROUNDS).await
    });
    let lines = lines.await?;
    say(report::tables(&lines))?;
    say(report::aims(&lines))?;
    Ok(())
}

async fn measure_one(target: &HttpTarget, time: Duration) -> anyhow::Result<HttpResult> {
    let run = async {
        let first = under_load(target, LoadKeys::fresh(), time).await?;
        let replay = under_load(target, LoadKeys::one(), time).await?;
        let keyless = match target.role.store() {
            // One store stands for all: without a key none is asked.
            None | Some(Engine::Memory) => Some(under_load(target, LoadKeys::none(), time).await?),
            Some(_) => None,
        };
        Ok::<_, BenchError>(HttpResult { role: target.role, first, replay, keyless })
    };
    run.await.with_context(|| target.role.to_string())
}

async fn under_load(
    target: &HttpTarget,
    keys: LoadKeys,
    time: Duration,
) -> Result<Measurement, BenchError> {
    let warm_up = (time / 2).clamp(Duration::from_millis(250), Duration::from_secs(1));
    let plan = BenchPlan::new(CONNECTIONS, BenchSpan::Time(time))
        .warm_up(warm_up)
        .servers([target.server.processes(), target.store.clone()]);
    let load = HttpLoad::connect(target, keys, CONNECTIONS).await?;
    let measured = tokio::time::timeout(warm_up + time + TIMEOUT, measure(load, &plan)).await;
    measured.unwrap_or(Err(BenchError::Unexpected("it hangs")))
}
