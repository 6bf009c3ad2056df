//! One job, many clients: hapax's event streams beside nginx with nchan, and beside `send` alone.
//!
//! Each server has its own group of subscribers in a separate process, which holds the clients' sockets,
//! publishes, and counts. The servers take turns and are started anew for every turn.

mod bare_send;
mod limits;
mod load;
mod report;
mod server;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;

use crate::process::{HapaxBinary, nginx_version};
use crate::turns::in_rounds;
use crate::{RunArgs, say};
pub(crate) use bare_send::serve as serve_bare_send;
use limits::CorePinning;
pub(crate) use load::{FanoutLoadArgs, run as run_load};
use report::{FanoutLine, FanoutResult};
use server::{EVENT_SIZE, FanoutServer};

const ROUNDS: u32 = 2;

/// The arguments of `hapax-bench fanout`.
#[derive(clap::Args)]
pub(crate) struct FanoutArgs {
    /// How many clients follow the job, for each a measurement of its own.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    clients: Vec<usize>,
    /// Deliveries in a second while events have a fixed rate, which is this number over the clients'.
    #[arg(long, default_value_t = 20_000.0)]
    deliveries: f64,
    #[command(flatten)]
    hapax: HapaxBinary,
}

/// Runs the measurements and prints the tables.
pub(crate) async fn compare(args: &FanoutArgs, run: &RunArgs) -> anyhow::Result<()> {
    let hapax = args.hapax.path()?;
    let cores = CorePinning::share();
    let limit = limits::raise_limit();
    say(description(&cores))?;
    let kinds = FanoutServer::installed();
    let mut lines = Vec::new();
    for clients in args.clients.iter().copied() {
        if let Some(reason) = limits::too_many(clients, limit) {
            say(reason)?;
            continue;
        }
        let rate = args.deliveries / clients.max(1) as f64;
        let phase = run.seconds / ROUNDS;
        let plan = FanoutPlan { hapax: &hapax, cores: &cores, clients, rate, phase };
        let outcomes = in_rounds(ROUNDS, kinds.len(), async |case, _| {
            let outcome = plan.run(kinds[case]).await;
            outcome.with_context(|| format!("{clients} clients on {}", kinds[case].name()))
        });
        let outcomes = kinds.iter().copied().zip(outcomes.await?);
        lines.extend(outcomes.map(|(kind, outcome)| FanoutLine { kind, clients, outcome }));
    }
    say(report::tables(&lines))?;
    Ok(())
}

fn description(cores: &CorePinning) -> String {
    let nchan = match nginx_version() {
        Some(version) => format!("nginx {version} with nchan"),
        None => "no nginx here: apt-get install nginx-light libnginx-mod-nchan".into(),
    };
    format!(
        "## Fan-out\n\nOne job, events of {EVENT_SIZE} bytes, clients on loopback. Both keep events in \
         memory alone ({nchan}, its memory store, one worker; hapax on `memory:`), and both are told \
         to write no log. *bare-send* writes each event to all sockets and does nothing else: the \
         kernel's own cost, in which the client's half of a loopback connection is included. Cores: \
         {}. One connection publishes, in order; as fast as it goes is at most 32 events ahead of the \
         average client. The server's CPU time has its share of the \
         publishing in it, the kernel's work for its sockets included. Memory is what the server's \
         processes have resident over what they had without clients; the kernel's socket buffers are \
         not in it. Latency is from before the publisher's write to the client's read.\n",
        cores.description()
    )
}

struct FanoutPlan<'a> {
    hapax: &'a Path,
    cores: &'a CorePinning,
    clients: usize,
    rate: f64,
    phase: Duration,
}

impl FanoutPlan<'_> {
    /// Runs a server and its subscribers.
    async fn run(&self, kind: FanoutServer) -> anyhow::Result<FanoutResult> {
        let folder = tempfile::tempdir()?;
        let server = kind.start(self.hapax, folder.path(), self.clients, self.cores)?;
        let mut command = self.cores.load(&std::env::current_exe()?);
        command
            .args(["fanout-load", "--kind", kind.name()])
            .args(["--address", &server.address().to_string()])
            .args(["--server", &server.pid().to_string()])
            .args(["--clients", &self.clients.to_string()])
            .args(["--rate", &self.rate.to_string()])
            .args(["--phase", &self.phase.as_secs_f64().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::inherit());
        let mut command = tokio::process::Command::from(command);
        let output = command.kill_on_drop(true).stdout(Stdio::piped()).spawn()?.wait_with_output();
        let output = output.await?;
        anyhow::ensure!(output.status.success(), "the load failed");
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
