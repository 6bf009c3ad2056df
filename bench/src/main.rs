//! The cost of hapax beside the same work without it.
//!
//! ```text
//! hapax-bench [--seconds 2] [--tasks 1,64,256] [--only redis]        stores beside raw engines
//! hapax-bench bus [--seconds 2] [--tasks 1,64,256] [--only redis]    publishing beside raw engines
//! hapax-bench http [--seconds 2] [--only redis] [--hapax PATH]       layer and proxy beside nginx
//! hapax-bench fanout [--seconds 4] [--clients 1000,5000,10000]       event streams beside nchan
//! hapax-bench relay [--seconds 2]                                    outbox, relay and inbox
//! hapax-bench line [--seconds 2] [--tasks 1,64] [--only redis]       locks, records and webhooks of a bot
//! hapax-bench growth [--seconds 2] [--keys 1e4,1e6] [--only redis]   how cost grows with what is stored
//! hapax-bench console [--keys 1e6] [--consoles 50]                  pages and idle consoles
//! hapax-bench compare [stores|bus|http|…] [--record]                 this run beside recorded ratios
//! ```
//!
//! Starts its own servers on loopback, in temporary folders. The compared sides take turns, so that a
//! machine that gets slower or faster affects all of them.

mod bus;
mod compare;
mod console;
mod fanout;
mod growth;
mod http;
mod line;
mod process;
mod raw;
mod relay;
mod store_server;
mod stores;
mod turns;

use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use tokio::signal::unix::{SignalKind, signal};

use process::HapaxBinary;
use store_server::Engine;

/// Measures hapax beside the same work without it.
///
/// Without a command: claims, locks and records on each store, beside its raw engine.
#[derive(Parser)]
struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    run: RunArgs,
}

/// The flags that the comparisons share.
#[derive(Clone, clap::Args)]
struct RunArgs {
    /// How long each side works for each line of the tables.
    #[arg(long, global = true, default_value = "2", value_parser = parse_seconds)]
    seconds: Duration,
    /// Only these stores.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    only: Vec<Engine>,
    /// How many tasks work at once, for each a line of its own (stores, `bus` and `line`).
    #[arg(long, global = true, value_delimiter = ',', default_values_t = ALL_TASKS)]
    tasks: Vec<usize>,
}

const ALL_TASKS: [usize; 3] = [1, 64, 256];

impl RunArgs {
    fn engines(&self) -> impl Iterator<Item = Engine> {
        let chosen = |engine: &Engine| self.only.is_empty() || self.only.contains(engine);
        Engine::ALL.into_iter().filter(chosen)
    }

    /// Whether the tables lack lines that they have by default.
    fn is_narrowed(&self) -> bool {
        !self.only.is_empty() || ALL_TASKS.iter().any(|tasks| !self.tasks.contains(tasks))
    }

    /// The same flags for another process.
    fn as_arguments(&self) -> Vec<String> {
        let tasks: Vec<_> = self.tasks.iter().map(ToString::to_string).collect();
        let mut arguments = vec![format!("--seconds={}", self.seconds.as_secs_f64())];
        arguments.push(format!("--tasks={}", tasks.join(",")));
        let only = self.only.iter().filter_map(ValueEnum::to_possible_value);
        arguments.extend(only.map(|engine| format!("--only={}", engine.get_name())));
        arguments
    }
}

fn parse_seconds(text: &str) -> anyhow::Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

#[derive(Subcommand)]
enum BenchCommand {
    /// `Idempotency-Key`: a bare handler, the layer on each store, nginx, and the proxy on each store.
    Http(HapaxBinary),
    /// Publishing on each store, beside its raw engine.
    Bus,
    /// One job, many clients: event streams beside nginx with nchan.
    Fanout(fanout::FanoutArgs),
    /// The outbox in a transaction, relays into brokers, and the inbox.
    Relay(relay::RelayBenchArgs),
    /// A LINE bot: locks, records, and from webhook to 200.
    Line(HapaxBinary),
    /// How cost grows with keys, expired rows, jobs, outbox rows and processes.
    Growth(growth::GrowthArgs),
    /// The console: how long each page takes beside many claims, and what open consoles cost while nothing happens.
    Console(console::ConsoleArgs),
    /// A run beside the recorded ratios; fails if a line got slower by more than a quarter.
    Compare(compare::CompareArgs),
    /// The clients of `fanout`, in a separate process.
    #[command(hide = true)]
    FanoutLoad(fanout::FanoutLoadArgs),
    /// The server of `fanout` that only writes to sockets.
    #[command(hide = true)]
    FanoutBareSend,
    /// The server under test, in a separate process so that its CPU time can be told apart.
    #[command(hide = true)]
    ServeHandler(http::HandlerArgs),
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args = BenchArgs::parse();
    match args.command {
        Some(BenchCommand::ServeHandler(args)) => {
            return http::serve_handler(args).await.map(|()| ExitCode::SUCCESS);
        }
        Some(BenchCommand::FanoutLoad(args)) => {
            return fanout::run_load(args).await.map(|()| ExitCode::SUCCESS);
        }
        Some(BenchCommand::FanoutBareSend) => {
            return fanout::serve_bare_send().map(|()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    // Return an error for a signal, too, so that destructors end the started servers.
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    tokio::select! {
        result = measure(args) => result,
        _ = interrupt.recv() => anyhow::bail!("interrupted"),
        _ = terminate.recv() => anyhow::bail!("terminated"),
    }
}

async fn measure(BenchArgs { command, run }: BenchArgs) -> anyhow::Result<ExitCode> {
    say(format_args!("{}\n", machine_facts()))?;
    match command {
        Some(BenchCommand::Compare(compare)) => return compare::compare(&compare, &run).await,
        Some(BenchCommand::Http(hapax)) => http::compare(&hapax, &run).await,
        Some(BenchCommand::Bus) => bus::compare(&run).await,
        Some(BenchCommand::Relay(relay)) => relay::compare(&relay, &run).await,
        Some(BenchCommand::Line(hapax)) => line::compare(&hapax, &run).await,
        Some(BenchCommand::Fanout(fanout)) => fanout::compare(&fanout, &run).await,
        Some(BenchCommand::Growth(growth)) => growth::compare(&growth, &run).await,
        Some(BenchCommand::Console(console)) => console::compare(&console).await,
        _ => stores::compare(&run).await,
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Whether standard error has dots without a line feed behind them.
static DOTTED: AtomicBool = AtomicBool::new(false);

/// Prints a dot to standard error.
fn progress() {
    DOTTED.store(true, Relaxed);
    let _ = write!(std::io::stderr(), ".");
}

/// Shows on standard error how far something is, in place of what was shown before.
fn show_progress(text: impl Display) {
    DOTTED.store(true, Relaxed);
    let _ = write!(std::io::stderr(), "\r{text}");
}

/// Writes a line to standard error.
fn note(text: impl Display) {
    if DOTTED.swap(false, Relaxed) {
        let _ = writeln!(std::io::stderr());
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}

fn say(text: impl Display) -> std::io::Result<()> {
    if DOTTED.swap(false, Relaxed) {
        let _ = writeln!(std::io::stderr());
    }
    writeln!(std::io::stdout(), "{text}")
}

/// Cores, processor and kernel in one line.
fn machine_facts() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = read_line("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown kernel".into());
    let processor = processor();
    let build =
        if cfg!(debug_assertions) { ", DEBUG BUILD: these numbers mean nothing" } else { "" };
    format!("{cores} cores ({processor}), {} {kernel}{build}", std::env::consts::OS)
}

fn processor() -> String {
    let named = read_line("/proc/cpuinfo").and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?.to_owned();
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    named.unwrap_or_else(|| "unknown processor".into())
}

fn read_line(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}
