//! What hapax costs, in one run.
//!
//! ```text
//! hapax-bench [--seconds 2] [--tasks 1,64,256] [--only redis]        stores beside raw engines
//! hapax-bench bus [--seconds 2] [--tasks 1,64,256] [--only redis]    publishing beside raw engines
//! hapax-bench http [--seconds 2] [--only redis] [--hapax PATH]       layer and proxy beside nginx
//! hapax-bench fanout [--seconds 4] [--clients 1000,5000,10000]       event streams beside nchan
//! hapax-bench relay [--seconds 2]                                    outbox, relay and inbox
//! hapax-bench line [--seconds 2] [--tasks 1,64] [--only redis]       locks, records and webhooks of a bot
//! ```
//!
//! Starts servers of its own on loopback, in temporary folders. Whatever is compared takes turns, so
//! that a machine that gets slower or faster meanwhile does so for all.

mod arena;
mod bus;
mod fanout;
mod hapax_binary;
mod http;
mod line;
mod machine;
mod nginx;
mod place;
mod process;
mod raw;
mod relay;
mod stores;
mod turns;

use std::io::Write;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use arena::Engine;

/// Measures hapax beside what does the same without it, in one run.
///
/// Without a command: claims, locks and records on each store, beside its raw engine.
#[derive(Parser)]
struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// How long each side works for each line of the tables.
    #[arg(long, global = true, default_value_t = 2.0)]
    seconds: f64,
    /// Only these stores.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    only: Vec<Engine>,
    /// How many tasks work at once, for each a line of its own (stores and `bus`).
    #[arg(long, global = true, value_delimiter = ',', default_value = "1,64,256")]
    tasks: Vec<usize>,
}

#[derive(Subcommand)]
enum What {
    /// `Idempotency-Key`: a bare handler, the layer on each store, nginx, and the proxy on each store.
    Http(http::Args),
    /// Publishing on each store, beside its raw engine.
    Bus,
    /// One job, many clients: event streams beside nginx with nchan.
    Fanout(fanout::Args),
    /// The outbox in a transaction, relays into brokers, and the inbox.
    Relay(relay::Args),
    /// A LINE bot: locks, records, and from webhook to 200.
    Line(line::Args),
    /// The clients of `fanout`, in a process of their own.
    #[command(hide = true)]
    FanoutLoad(fanout::LoadArgs),
    /// The server under test, in a process of its own so that its CPU time is its own.
    #[command(hide = true)]
    ServeHandler(http::HandlerArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    match args.what {
        Some(What::ServeHandler(args)) => return http::serve_handler(args).await,
        Some(What::FanoutLoad(args)) => return fanout::run_load(args).await,
        _ => {}
    }
    // Errors are returned, also for a signal: what was started is ended on the way out.
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        result = measure(args) => result,
        _ = interrupt.recv() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("terminated"),
    }
}

async fn measure(args: Args) -> anyhow::Result<()> {
    let seconds = Duration::try_from_secs_f64(args.seconds)?;
    let engines: Vec<Engine> = Engine::ALL
        .into_iter()
        .filter(|engine| args.only.is_empty() || args.only.contains(engine))
        .collect();
    say(&format!("{}\n", machine::facts()))?;
    match args.what {
        Some(What::Http(http)) => http::compare(&http, &engines, seconds).await,
        Some(What::Bus) => bus::compare(&engines, &args.tasks, seconds).await,
        Some(What::Relay(relay)) => relay::compare(&relay, &engines, seconds).await,
        Some(What::Line(line)) => line::compare(&line, &engines, &args.tasks, seconds).await,
        Some(What::Fanout(fanout)) => fanout::compare(&fanout, seconds).await,
        _ => stores::compare(&engines, &args.tasks, seconds).await,
    }
}

/// Progress, where somebody watches.
fn progress(text: &str) {
    let _ = write!(std::io::stderr(), "{text}");
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
