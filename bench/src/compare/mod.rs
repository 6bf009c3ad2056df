//! Compares a run with recorded ratios, so that a developer notices what got slower.

mod figures;
mod judgement;
mod tables;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::ValueEnum;
use tokio::process::Command;

use crate::store_server::Engine;
use crate::{RunArgs, note, processor, say};
use figures::{FigureLines, printed_figures, reference_work};
use judgement::Judgement;

/// How often a line runs again before it is called slower.
const REPEATS: u32 = 2;
/// No run of one comparison takes longer.
const TIMEOUT: Duration = Duration::from_secs(1800);

/// The arguments of `hapax-bench compare`.
#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// Only these comparisons; all of them by default.
    #[arg(value_enum)]
    comparisons: Vec<Comparison>,
    /// The recorded ratios.
    #[arg(long, value_name = "FILE", default_value = "bench/recorded.json")]
    recorded: PathBuf,
    /// Write the ratios of this run into the file instead of comparing with it.
    #[arg(long)]
    record: bool,
    /// Take a comparison's figures from what it printed earlier (`http=out.md`) instead of running it.
    #[arg(long, value_name = "COMPARISON=FILE", value_parser = parse_printed)]
    read: Vec<(Comparison, PathBuf)>,
    /// The `hapax` binary that is measured; the one beside this binary by default.
    #[arg(long, value_name = "PATH")]
    hapax: Option<PathBuf>,
}

/// A command of this program that prints tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum Comparison {
    Stores,
    Bus,
    Http,
    Fanout,
    Relay,
    Line,
}

impl Comparison {
    const fn name(self) -> &'static str {
        match self {
            Self::Stores => "stores",
            Self::Bus => "bus",
            Self::Http => "http",
            Self::Fanout => "fanout",
            Self::Relay => "relay",
            Self::Line => "line",
        }
    }

    const fn runs_hapax(self) -> bool {
        matches!(self, Self::Http | Self::Fanout | Self::Line)
    }
}

fn parse_printed(text: &str) -> anyhow::Result<(Comparison, PathBuf)> {
    let (comparison, file) = text.split_once('=').context("COMPARISON=FILE is expected")?;
    let comparison = Comparison::from_str(comparison, true).map_err(anyhow::Error::msg)?;
    Ok((comparison, file.into()))
}

/// The recorded lines of each comparison, by its name.
type RecordedLines = BTreeMap<String, FigureLines>;
/// The lines recorded on each processor: ratios to another program may differ between two of them by a factor of two.
type RecordedFile = BTreeMap<String, RecordedLines>;

/// Runs the comparisons and prints recorded and present ratios. Fails if a line is slower than recorded.
pub(crate) async fn compare(args: &CompareArgs, run: &RunArgs) -> anyhow::Result<ExitCode> {
    ensure!(!cfg!(debug_assertions), "the ratios of a debug build mean nothing");
    let mut file = read_recorded(&args.recorded)?;
    let processor = processor();
    if args.record {
        let recorded = file.entry(processor).or_default();
        for comparison in args.chosen() {
            let lines = args.figures(comparison, run, true).await?;
            say(format_args!("{}: {} lines", comparison.name(), lines.len()))?;
            let known = recorded.entry(comparison.name().to_owned()).or_default();
            if !run.is_narrowed() {
                known.clear();
            }
            known.extend(lines);
        }
        let json = serde_json::to_string_pretty(&file)? + "\n";
        std::fs::write(&args.recorded, json)?;
        say(format_args!("recorded in {}", args.recorded.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let recorded = lines_of(&file, &processor)?;
    let mut complaints = Vec::new();
    for comparison in args.chosen() {
        let Some(lines) = recorded.get(comparison.name()) else {
            let nothing = format!("{}: nothing is recorded", comparison.name());
            // A comparison that was not named is left out, until `--record` has its lines.
            match args.comparisons.contains(&comparison) {
                true => complaints.push(nothing),
                false => note(nothing),
            }
            continue;
        };
        let judgement = args.judge(comparison, run, lines).await?;
        say(format_args!("## {}\n\n{}", comparison.name(), judgement.table()))?;
        let slower = judgement.slower();
        complaints.extend(slower.iter().map(|line| format!("slower than recorded: {line}")));
        if !run.is_narrowed() {
            let missing = judgement.missing();
            complaints.extend(missing.iter().map(|line| format!("not measured: {line}")));
        }
    }
    if complaints.is_empty() {
        say("No line is slower than recorded by more than a quarter.")?;
        return Ok(ExitCode::SUCCESS);
    }
    say(complaints.join("\n"))?;
    Ok(ExitCode::FAILURE)
}

fn read_recorded(file: &Path) -> anyhow::Result<RecordedFile> {
    match std::fs::read(file) {
        Ok(json) => serde_json::from_slice(&json).with_context(|| file.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(RecordedFile::new()),
        Err(error) => Err(error).with_context(|| file.display().to_string()),
    }
}

/// The lines of this processor: those of another one may differ by more than a quarter.
fn lines_of<'a>(file: &'a RecordedFile, processor: &str) -> anyhow::Result<&'a RecordedLines> {
    file.get(processor).with_context(|| {
        format!(
            "nothing is recorded on this processor ({processor}): record the version before your change with --record, \
             then compare"
        )
    })
}

impl CompareArgs {
    fn chosen(&self) -> Vec<Comparison> {
        match (&*self.comparisons, &*self.read) {
            ([], []) => Comparison::value_variants().to_vec(),
            ([], read) => read.iter().map(|(comparison, _)| *comparison).collect(),
            (chosen, _) => chosen.to_vec(),
        }
    }

    /// Runs a comparison, and again for what looks slower.
    async fn judge<'a>(
        &self,
        comparison: Comparison,
        run: &RunArgs,
        recorded: &'a FigureLines,
    ) -> anyhow::Result<Judgement<'a>> {
        let mut judgement = Judgement::new(recorded);
        judgement.add_run(&self.figures(comparison, run, true).await?);
        for _ in 0..REPEATS {
            let slower = judgement.slower();
            if slower.is_empty() {
                break;
            }
            note(format_args!("{}: looks slower, runs again: {slower:?}", comparison.name()));
            // Run the engines of the slow lines alone. nginx and bare handlers run with any engine.
            let is_slow = |engine: &Engine| slower.iter().any(|line| line.contains(engine.name()));
            let only = run.engines().filter(is_slow).collect();
            let again = RunArgs { only, ..run.clone() };
            judgement.add_run(&self.figures(comparison, &again, false).await?);
        }
        Ok(judgement)
    }

    /// The figures of one run, or those that were printed earlier.
    async fn figures(
        &self,
        comparison: Comparison,
        run: &RunArgs,
        may_read: bool,
    ) -> anyhow::Result<FigureLines> {
        let read = self.read.iter().find(|(read, _)| may_read && *read == comparison);
        let printed = match read {
            Some((_, file)) => std::fs::read_to_string(file)
                .with_context(|| format!("cannot read {}", file.display()))?,
            None => self.print_tables(comparison, run).await?,
        };
        printed_figures(&printed, reference_work())
    }

    /// Runs the command of a comparison in a process of its own, so that its memory and CPU time do not
    /// depend on what ran before. Returns what it printed.
    async fn print_tables(&self, comparison: Comparison, run: &RunArgs) -> anyhow::Result<String> {
        let mut command = Command::new(std::env::current_exe()?);
        if comparison != Comparison::Stores {
            command.arg(comparison.name());
        }
        if let Some(hapax) = self.hapax.as_ref().filter(|_| comparison.runs_hapax()) {
            command.arg("--hapax").arg(hapax);
        }
        command.args(run.as_arguments()).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let output = tokio::time::timeout(TIMEOUT, command.spawn()?.wait_with_output()).await;
        let output = output.with_context(|| format!("{} does not end", comparison.name()))??;
        if !output.status.success() {
            bail!("{} failed: {}", comparison.name(), output.status);
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_ratios_are_those_of_this_processor() {
        let lines = |name: &str| RecordedLines::from([(name.to_owned(), FigureLines::new())]);
        let file = RecordedFile::from([("a".into(), lines("of a")), ("b".into(), lines("of b"))]);
        assert!(lines_of(&file, "b").unwrap().contains_key("of b"));
        assert!(lines_of(&file, "c").unwrap_err().to_string().contains("--record"));
    }

    #[test]
    fn recorded_ratios_of_this_repository_can_be_read() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded.json");
        assert!(!read_recorded(&file).unwrap().is_empty());
    }
}
