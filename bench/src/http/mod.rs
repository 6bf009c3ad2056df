//! What the layer costs over a bare handler, and the proxy beside nginx.
//!
//! Every server under test is a process of its own, and so is every store's server: their CPU times
//! are told apart from each other and from the load generator's, which is this process.

mod aims;
mod client;
mod handler;
mod load;
mod nginx;
mod report;
mod stage;

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use hapax_bench::{Failure, Measured, Plan, Span, measure};

use crate::arena::Engine;
use crate::hapax_binary::HapaxBinary;
use crate::say;
pub(crate) use handler::{HandlerArgs, serve as serve_handler};
use load::{Keys, Load};
use report::Line;
pub(crate) use stage::handler;
use stage::{Stage, Subject};

/// Keep-alive connections, each with one request at a time.
const CONNECTIONS: usize = 64;
/// There and back again through all subjects: what the machine does meanwhile happens to all.
const ROUNDS: u32 = 2;
/// Beyond its time, for a measurement that hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// The arguments of `hapax-bench http`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    hapax: HapaxBinary,
}

/// Measures all of it and prints the tables.
pub(crate) async fn compare(
    args: &Args,
    engines: &[Engine],
    seconds: Duration,
) -> anyhow::Result<()> {
    let stage = Stage::set(&args.hapax.path()?, engines)?;
    say(&stage.description())?;
    let mut lines: Vec<Option<Line>> = stage.subjects.iter().map(|_| None).collect();
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..lines.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            let line = measure_one(&stage.subjects[at], seconds / ROUNDS).await?;
            lines[at] = Some(match lines[at].take() {
                Some(before) => before.and(&line),
                None => line,
            });
            // Progress, where somebody watches.
            let _ = write!(std::io::stderr(), ".");
        }
    }
    let _ = writeln!(std::io::stderr());
    let lines: Vec<Line> = lines.into_iter().flatten().collect();
    say(&report::tables(&lines))?;
    say(&aims::table(&lines).to_string())?;
    Ok(())
}

async fn measure_one(subject: &Subject, time: Duration) -> anyhow::Result<Line> {
    let run = async {
        let first = under_load(subject, Keys::fresh(), time).await?;
        let replay = under_load(subject, Keys::one(), time).await?;
        Ok::<_, Failure>(Line { role: subject.role, first, replay })
    };
    run.await.with_context(|| format!("{}", subject.role))
}

async fn under_load(subject: &Subject, keys: Keys, time: Duration) -> Result<Measured, Failure> {
    let warm_up = (time / 2).clamp(Duration::from_millis(250), Duration::from_secs(1));
    let plan = Plan::new(CONNECTIONS, Span::Time(time))
        .warm_up(warm_up)
        .servers([subject.server.processes(), subject.store.clone()]);
    let load = Load::connect(subject, keys, CONNECTIONS).await?;
    let limit = warm_up + time + PATIENCE;
    match tokio::time::timeout(limit, measure(load, &plan)).await {
        Ok(measured) => measured,
        Err(_) => Err(Failure::Unexpected("it hangs")),
    }
}
