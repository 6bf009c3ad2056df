//! The command line of `hapax-torture`; see `docs/torture.md`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people and scripts")]

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand, ValueEnum};
use hapax_torture::history::read_history;
use hapax_torture::{
    FaultKind, LoadConfig, SoakConfig, StoreKind, TortureConfig, TortureReport, WorkloadKind,
    run_generator_process, run_load, run_soak, run_torture,
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
    /// Offer far more than can be served, and see how a quiet tenant fares.
    Load(LoadArgs),
    /// A steady load for hours: do memory, open files and the store level off?
    Soak(SoakArgs),
    /// The clients of a load, in a process of their own.
    #[command(hide = true)]
    LoadClients { plan: String },
}

#[derive(Args)]
struct SoakArgs {
    /// How long it runs on each store.
    #[arg(long, env = "HAPAX_SOAK_MINUTES", default_value_t = 10)]
    minutes: u64,
    /// How many calls are made in each second.
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// The stores, one after the other, with commas.
    #[arg(long, value_delimiter = ',', default_value = "sqlite")]
    store: Vec<StoreKind>,
    /// The folder for `soak-STORE.csv` and `soak-STORE.svg`.
    #[arg(long, default_value = ".")]
    output: PathBuf,
    /// The `hapax` binary; by default the one beside this program.
    #[arg(long)]
    hapax: Option<PathBuf>,
}

impl SoakArgs {
    /// Whether everything levelled off.
    fn execute(&self) -> anyhow::Result<bool> {
        let mut is_level = true;
        for store in &self.store {
            let config = SoakConfig {
                hapax: hapax_binary(self.hapax.as_ref())?,
                store: *store,
                duration: Duration::from_secs(self.minutes * 60),
                rate: self.rate,
            };
            let report = run_soak(&config, |line| eprintln!("{line}"))?;
            let file = |end: &str| self.output.join(format!("soak-{}.{end}", store.name()));
            std::fs::write(file("csv"), report.csv())?;
            std::fs::write(file("svg"), report.picture())?;
            println!("{}", report.table());
            is_level &= report.is_level();
        }
        Ok(is_level)
    }
}

#[derive(Args)]
struct LoadArgs {
    /// How long each kind of load lasts.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// How many clients send byte by byte, or do not read.
    #[arg(long, default_value_t = 5000)]
    slow_clients: usize,
    /// How many idle event streams are open.
    #[arg(long, default_value_t = 20_000)]
    streams: usize,
    /// How many connections the flooding tenant has.
    #[arg(long, default_value_t = 2000)]
    flood: usize,
    /// `--store-calls` of the servers; their own default without it.
    #[arg(long)]
    store_calls: Option<usize>,
    /// The stores, one after the other, with commas.
    #[arg(long, value_delimiter = ',', default_value = "sqlite")]
    store: Vec<StoreKind>,
    /// The `hapax` binary; by default the one beside this program.
    #[arg(long)]
    hapax: Option<PathBuf>,
}

impl LoadArgs {
    /// Whether no hard promise was broken.
    fn execute(&self) -> anyhow::Result<bool> {
        let mut is_clean = true;
        for store in &self.store {
            let config = LoadConfig {
                hapax: hapax_binary(self.hapax.as_ref())?,
                store: *store,
                seconds: self.seconds,
                slow_clients: self.slow_clients,
                streams: self.streams,
                flood: self.flood,
                store_calls: self.store_calls,
                program: Some(std::env::current_exe()?),
            };
            let report = run_load(&config, |line| eprintln!("{line}"))?;
            println!("{}", report.table());
            is_clean &= report.failures.is_empty();
        }
        Ok(is_clean)
    }
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
    /// Write what was seen to this file, a line of JSON each; with several stores to one file each, `FILE-STORE.jsonl`.
    #[arg(long)]
    history: Option<PathBuf>,
    /// Run nothing; check the history in this file again.
    #[arg(long, conflicts_with = "history")]
    replay: Option<PathBuf>,
    /// How many times the usual number of clients.
    #[arg(long, default_value_t = 1)]
    clients: u32,
    /// How many hapax processes may be hit by faults at once.
    #[arg(long, default_value_t = 1)]
    fault_threads: u32,
    /// An older `hapax` binary, for the fault `upgrade`.
    #[arg(long)]
    previous: Option<PathBuf>,
    /// The `hapax` binary; by default the one beside this program.
    #[arg(long)]
    hapax: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = TortureArgs::parse();
    let run = match arguments.command {
        Some(TortureCommand::Run(run)) => run,
        None => arguments.run,
        Some(TortureCommand::Load(load)) => return exit_code(load.execute()),
        Some(TortureCommand::Soak(soak)) => return exit_code(soak.execute()),
        Some(TortureCommand::LoadClients { plan }) => {
            return exit_code(run_generator_process(&plan).map(|()| true));
        }
    };
    let needs_disk =
        |name: &String| FaultKind::from_str(name, false).is_ok_and(|fault| fault.needs_disk());
    let needs_mounts = run.faults.iter().any(needs_disk);
    if needs_mounts && std::env::var_os(OWN_MOUNTS).is_none() {
        return rerun_with_own_mounts().unwrap_or_else(|error| exit_code(Err(error)));
    }
    exit_code(run.execute())
}

fn exit_code(is_clean: anyhow::Result<bool>) -> ExitCode {
    match is_clean {
        Ok(is_clean) => ExitCode::from(u8::from(!is_clean)),
        Err(error) => {
            eprintln!("hapax-torture: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// The `hapax` to run: the named one, or the one beside this program. Absolute, because it is started in another folder.
fn hapax_binary(named: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let hapax = match named {
        Some(hapax) => hapax.clone(),
        None => std::env::current_exe()?.with_file_name("hapax"),
    };
    anyhow::ensure!(hapax.is_file(), "there is no {}; name one with --hapax", hapax.display());
    Ok(std::path::absolute(hapax)?)
}

impl TortureRunArgs {
    /// Whether every promise was kept.
    fn execute(&self) -> anyhow::Result<bool> {
        if let Some(file) = &self.replay {
            return replay(file);
        }
        let hapax = hapax_binary(self.hapax.as_ref())?;
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
                fault_threads: self.fault_threads,
                previous: self.previous.clone(),
                history: self.history_of(*store),
            };
            eprintln!("{}: seed {}", store.name(), config.seed);
            let report = run_torture(&config, |line| eprintln!("{line}"))?;
            is_clean &= show(&report);
        }
        Ok(is_clean)
    }

    /// The file for the history of a store: with several stores its name has that of the store.
    fn history_of(&self, store: StoreKind) -> Option<PathBuf> {
        let file = self.history.as_ref()?;
        if self.store.len() < 2 {
            return Some(file.clone());
        }
        let mut name = file.file_stem().unwrap_or_default().to_owned();
        name.push(format!("-{}", store.name()));
        if let Some(extension) = file.extension() {
            name.push(".");
            name.push(extension);
        }
        Some(file.with_file_name(name))
    }
}

fn replay(file: &Path) -> anyhow::Result<bool> {
    let history = read_history(BufReader::new(File::open(file)?))?;
    let seconds = history.iter().map(|entry| entry.to).max().unwrap_or(0) / 1_000_000;
    Ok(show(&TortureReport::of(history, seconds, Vec::new())))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_of_each_store_has_its_own_file() {
        let files = |stores: &str| {
            let arguments = ["hapax-torture", "--history", "out/torture.jsonl", "--store", stores];
            let run = TortureArgs::parse_from(arguments).run;
            run.store.iter().map(|store| run.history_of(*store)).collect::<Vec<_>>()
        };
        let file = |name: &str| Some(PathBuf::from(name));
        assert_eq!(files("sqlite"), [file("out/torture.jsonl")]);
        let several = [file("out/torture-sqlite.jsonl"), file("out/torture-redis.jsonl")];
        assert_eq!(files("sqlite,redis"), several);
    }
}
