//! The command line of `hapax-torture`; see `docs/torture.md`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and scripts")]

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hapax_torture::history::{read_history, write_history};
use hapax_torture::{
    FaultKind, StoreKind, TortureConfig, TortureReport, WorkloadKind, check_history, run_torture,
};

/// Set when the program runs with mounts of its own.
const OWN_MOUNTS: &str = "HAPAX_TORTURE_OWN_MOUNTS";

/// Breaks real hapax processes and stores, and checks what their clients saw.
///
/// Exit status: 0 no violation, 1 a violation, 2 it could not run.
#[derive(Parser)]
#[command(version)]
struct TortureArgs {
    #[command(subcommand)]
    command: Option<TortureCommand>,
    #[command(flatten)]
    run: TortureRunArgs,
}

#[derive(Subcommand)]
enum TortureCommand {
    /// Run clients and faults, and check (what no command does, too).
    Run(TortureRunArgs),
}

#[derive(Args)]
struct TortureRunArgs {
    /// How many minutes to run on each store.
    #[arg(long, default_value_t = 1)]
    minutes: u64,
    /// How many seconds to run on each store, instead of minutes.
    #[arg(long, conflicts_with = "minutes")]
    seconds: Option<u64>,
    /// Decides all choices; a random one by default.
    #[arg(long)]
    seed: Option<u64>,
    /// The stores, one after the other, with commas.
    #[arg(long, value_delimiter = ',', default_value = "sqlite")]
    store: Vec<StoreKind>,
    /// The workloads, with commas, or `all`.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    workload: Vec<String>,
    /// The faults, with commas, or `none`; `all` are those that need no special rights: `all,power-cut`.
    #[arg(long, value_delimiter = ',', default_value = "all")]
    faults: Vec<String>,
    /// Write what was seen to this file, a line of JSON each.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Run nothing; check the history in this file again.
    #[arg(long, conflicts_with = "history")]
    replay: Option<PathBuf>,
    /// How many times the usual number of clients.
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// The `hapax` binary; by default the one beside this program.
    #[arg(long)]
    hapax: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = TortureArgs::parse();
    let run = match arguments.command {
        Some(TortureCommand::Run(run)) => run,
        None => arguments.run,
    };
    let needs_mounts = run.faults.iter().any(|name| name == FaultKind::PowerCut.name());
    let outcome = if needs_mounts && std::env::var_os(OWN_MOUNTS).is_none() {
        rerun_with_own_mounts()
    } else {
        run.execute().map(|is_clean| ExitCode::from(u8::from(!is_clean)))
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("hapax-torture: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl TortureRunArgs {
    /// Whether every promise was kept.
    fn execute(&self) -> anyhow::Result<bool> {
        if let Some(file) = &self.replay {
            return replay(file);
        }
        let hapax = match &self.hapax {
            Some(hapax) => hapax.clone(),
            None => std::env::current_exe()?.with_file_name("hapax"),
        };
        anyhow::ensure!(hapax.is_file(), "there is no {}; name one with --hapax", hapax.display());
        let mut is_clean = true;
        for store in &self.store {
            let config = TortureConfig {
                hapax: hapax.clone(),
                store: *store,
                duration: Duration::from_secs(self.seconds.unwrap_or(self.minutes * 60)),
                seed: self.seed.unwrap_or_else(random_seed),
                workloads: chosen(&self.workload, &WorkloadKind::ALL)?,
                faults: chosen(&self.faults, &FaultKind::ALL)?,
                clients: self.clients,
            };
            eprintln!("{}: seed {}", store.name(), config.seed);
            let report = run_torture(&config, |line| eprintln!("{line}"))?;
            if let Some(file) = &self.history {
                let file = File::create(file).context("the history")?;
                write_history(&report.history, BufWriter::new(file))?;
            }
            is_clean &= show(&report);
        }
        Ok(is_clean)
    }
}

fn replay(file: &Path) -> anyhow::Result<bool> {
    let history = read_history(BufReader::new(File::open(file)?))?;
    let violations = check_history(&history);
    let seconds = history.iter().map(|entry| entry.to).max().unwrap_or(0) / 1_000_000;
    let store = "as recorded".to_owned();
    let crashed = Vec::new();
    let report = TortureReport { store, seed: 0, seconds, history, violations, crashed };
    Ok(show(&report))
}

fn show(report: &TortureReport) -> bool {
    println!("{}", report.table());
    print!("{}", report.pictures());
    report.is_clean()
}

/// The named values; `all` and `none` are names, too.
fn chosen<T: ValueEnum + Copy>(names: &[String], all: &[T]) -> anyhow::Result<Vec<T>> {
    let mut values = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => values.extend(all),
            "none" => {}
            _ => match T::from_str(name, false) {
                Ok(value) => values.push(value),
                Err(_) => anyhow::bail!("there is no {name}"),
            },
        }
    }
    Ok(values)
}

/// Runs the program again with mounts of its own, which vanish with it, however it ends.
fn rerun_with_own_mounts() -> anyhow::Result<ExitCode> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]);
    command.arg(std::env::current_exe()?).args(std::env::args_os().skip(1));
    let status = command.env(OWN_MOUNTS, "1").status().context("unshare")?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2)))
}

fn random_seed() -> u64 {
    use std::hash::BuildHasher;
    std::collections::hash_map::RandomState::new().hash_one(std::process::id()) % 1_000_000
}
