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
use crate::{progress, say};
pub(crate) use handler::{HandlerArgs, serve as serve_handler};
use load::{HttpLoad, LoadKeys};
use report::HttpResult;
pub(crate) use setup::handler;
use setup::{HttpSetup, HttpTarget};

/// Keep-alive connections, each with one request at a time.
const CONNECTIONS: usize = 64;
/// The servers are measured in order and then in reverse, so that a change of the machine affects all.
const ROUNDS: u32 = 2;
/// How much longer than planned a measurement may take before it counts as hanging.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The arguments of `hapax-bench http`.
#[derive(clap::Args)]
pub(crate) struct HttpArgs {
    #[command(flatten)]
    hapax: HapaxBinary,
}

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(
    args: &HttpArgs,
    engines: &[Engine],
    seconds: Duration,
) -> anyhow::Result<()> {
    let setup = HttpSetup::set(&args.hapax.path()?, engines)?;
    say(&setup.description())?;
    let mut lines: Vec<Option<HttpResult>> = setup.servers.iter().map(|_| None).collect();
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..lines.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let line = measure_one(&setup.servers[at], seconds / ROUNDS).await?;
            lines[at] = Some(match lines[at].take() {
                Some(before) => before.and(&line),
                None => line,
            });
            progress(".");
        }
    }
    progress("\n");
    let lines: Vec<HttpResult> = lines.into_iter().flatten().collect();
    say(&report::tables(&lines))?;
    say(&report::aims(&lines).to_string())?;
    Ok(())
}

async fn measure_one(target: &HttpTarget, time: Duration) -> anyhow::Result<HttpResult> {
    let run = async {
        let first = under_load(target, LoadKeys::fresh(), time).await?;
        let replay = under_load(target, LoadKeys::one(), time).await?;
        Ok::<_, BenchError>(HttpResult { role: target.role, first, replay })
    };
    run.await.with_context(|| format!("{}", target.role))
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
    let limit = warm_up + time + TIMEOUT;
    match tokio::time::timeout(limit, measure(load, &plan)).await {
        Ok(measured) => measured,
        Err(_) => Err(BenchError::Unexpected("it hangs")),
    }
}
