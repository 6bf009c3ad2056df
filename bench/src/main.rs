//! What hapax costs, in one run.
//!
//! ```text
//! hapax-bench [--seconds 2] [--tasks 1,64,256] [--only redis]        stores beside raw engines
//! hapax-bench http [--seconds 2] [--only redis] [--hapax PATH]       layer and proxy beside nginx
//! ```
//!
//! Starts servers of its own on loopback, in temporary folders. Whatever is compared takes turns, so
//! that a machine that gets slower or faster meanwhile does so for all.

mod arena;
mod http;
mod machine;
mod raw;
mod stores;

use std::io::Write;
use std::time::Duration;

use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

use arena::Engine;

/// Measures hapax: each store beside its raw engine, or (`http`) layer and proxy beside nginx.
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
    /// How many tasks work at once, for each a line of its own (stores only).
    #[arg(long, value_delimiter = ',', default_value = "1,64,256")]
    tasks: Vec<usize>,
}

#[derive(Subcommand)]
enum What {
    /// A bare handler, the layer on each store, nginx, and the proxy on each store.
    Http(http::Args),
    /// The server under test, in a process of its own so that its CPU time is its own.
    #[command(hide = true)]
    ServeHandler(http::HandlerArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(What::ServeHandler(args)) = args.what {
        return http::serve_handler(args).await;
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
        _ => stores::compare(&engines, &args.tasks, seconds).await,
    }
}

fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}
