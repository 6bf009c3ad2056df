//! One job, many clients: hapax's event streams beside nginx with nchan.
//!
//! Every server has a crowd of its own, which is a process of its own: it holds the clients' sockets,
//! publishes, and counts. The servers take turns, each new every time.

mod cores;
mod files;
mod load;
mod outcome;
mod report;
mod subject;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;

use crate::hapax_binary::HapaxBinary;
use crate::process::Server;
use crate::{nginx, say};
use cores::Cores;
pub(crate) use load::{LoadArgs, run as run_load};
use outcome::Outcome;
use report::Line;
use subject::{EVENT_SIZE, Kind};

/// Hapax, nchan, nchan, hapax: what the machine does meanwhile happens to both.
const ROUNDS: u32 = 2;

/// The arguments of `hapax-bench fanout`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many clients follow the job, for each a measurement of its own.
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    clients: Vec<usize>,
    /// Deliveries in a second while events have a fixed rate, which is this number over the clients'.
    #[arg(long, default_value_t = 20_000.0)]
    deliveries: f64,
    #[command(flatten)]
    hapax: HapaxBinary,
}

/// Measures all of it and prints the tables.
pub(crate) async fn compare(args: &Args, seconds: Duration) -> anyhow::Result<()> {
    let hapax = args.hapax.path()?;
    let cores = Cores::share();
    let limit = files::raise_limit();
    say(&description(&cores))?;
    let mut lines = Vec::new();
    for clients in args.clients.iter().copied() {
        if let Some(reason) = files::too_many(clients, limit) {
            say(&reason)?;
            continue;
        }
        let rate = args.deliveries / clients.max(1) as f64;
        let plan = Plan { hapax: &hapax, cores: &cores, clients, rate, phase: seconds / ROUNDS };
        lines.extend(plan.take_turns().await?);
    }
    say(&report::tables(&lines))?;
    Ok(())
}

fn description(cores: &Cores) -> String {
    let nchan = match nginx::version() {
        Some(version) => format!("nginx {version} with nchan"),
        None => "no nginx here: apt-get install nginx-light libnginx-mod-nchan".into(),
    };
    format!(
        "## Fan-out\n\nOne job, events of {EVENT_SIZE} bytes, clients on loopback. Both keep events in \
         memory alone ({nchan}, its memory store, one worker; hapax on `memory:`), and both are told \
         to write no log. Cores: {}. One connection publishes, in order; as fast as it goes is at \
         most 32 events ahead of the average client. The server's CPU time has its share of the \
         publishing in it, the kernel's work for its sockets included. Memory is what the server's \
         processes have resident over what they had without clients; the kernel's socket buffers are \
         not in it. Latency is from before the publisher's write to the client's read.\n",
        cores.description()
    )
}

struct Plan<'a> {
    hapax: &'a Path,
    cores: &'a Cores,
    clients: usize,
    rate: f64,
    phase: Duration,
}

impl Plan<'_> {
    async fn take_turns(&self) -> anyhow::Result<Vec<Line>> {
        let mut lines: Vec<Line> = Vec::new();
        for round in 0..ROUNDS {
            let mut kinds = Kind::ALL;
            if round % 2 == 1 {
                kinds.reverse();
            }
            for kind in kinds {
                let run = self.run(kind).await;
                let run =
                    run.with_context(|| format!("{} clients on {}", self.clients, kind.name()));
                let Some(outcome) = run? else { continue };
                match lines.iter_mut().find(|line| line.kind == kind) {
                    Some(line) => line.outcome = line.outcome.clone().and(outcome),
                    None => lines.push(Line { kind, clients: self.clients, outcome }),
                }
                crate::progress(".");
            }
        }
        crate::progress("\n");
        Ok(lines)
    }

    /// A server and its crowd; `None` where there is no such server.
    async fn run(&self, kind: Kind) -> anyhow::Result<Option<Outcome>> {
        let folder = tempfile::tempdir()?;
        let server = kind.start(self.hapax, folder.path(), self.clients, self.cores)?;
        let Some(server) = server else { return Ok(None) };
        self.crowd(kind, &server).await.map(Some)
    }

    async fn crowd(&self, kind: Kind, server: &Server) -> anyhow::Result<Outcome> {
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
