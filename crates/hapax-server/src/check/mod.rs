//! `hapax check`: whether an HTTP service keeps the promises of `Idempotency-Key`, asked from outside.

mod checks;
mod profile;
mod report;
mod restart;
mod target;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use hyper::Uri;
use hyper::header::{HeaderName, HeaderValue};

use crate::client::{duration, print_line, print_note, progress_bar};
use checks::{CHECKS, NotHeld};
use profile::Profile;
use report::{CheckFinding, CheckReport, CheckVerdict};
use target::Target;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax check http://127.0.0.1:8080
  hapax check http://127.0.0.1:8080 --path /payments --profile stripe
  hapax check http://127.0.0.1:8080 --restart 'systemctl restart shop' --junit check.xml
  hapax check http://127.0.0.1:8080 --header 'Authorization: Bearer a' --other-caller 'Authorization: Bearer b'
  hapax check http://127.0.0.1:8080 --json | jq .fails

The service needs two routes, ten lines in most frameworks (the guide has them in four):
  POST /orders       counts one execution and answers as its JSON body asks, each field optional:
                     status (201), delay_ms (0), size of the response body in bytes, binary (false)
  GET /executions    answers {\"executions\": N}

Use a copy of the service that serves nobody else: other requests change the count.

Exit codes:
  0   everything that was asked holds, or is only recommended and --strict is not given
  1   something does not hold
  2   the service could not be asked: it cannot be reached, or is not such a service")]
pub(crate) struct CheckArgs {
    /// Where the service is: http://HOST:PORT or https://…
    url: Uri,
    /// The route that takes an Idempotency-Key
    #[arg(long, default_value = "/orders")]
    path: String,
    /// The route that tells how many requests were executed; http://… where it is not at the same address
    #[arg(long, default_value = "/executions")]
    count_path: String,
    /// The rules to check
    #[arg(long, value_enum, default_value_t = Profile::Hapax)]
    profile: Profile,
    /// Kill the service and start it again with this shell command, to see what a crash does
    #[arg(long, value_name = "CMD")]
    restart: Option<String>,
    /// How long the service keeps answers, if that is short enough to wait for
    #[arg(long, value_name = "TIME", value_parser = duration)]
    retention: Option<Duration>,
    /// A header of every request; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    header: Vec<(HeaderName, HeaderValue)>,
    /// The header that makes a request another caller's
    #[arg(long, value_name = "NAME: VALUE", value_parser = header)]
    other_caller: Option<(HeaderName, HeaderValue)>,
    /// How long a response may take, and how long a key may stay in progress after a restart
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "45s")]
    timeout: Duration,
    /// Only these checks, with commas between
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = check_name)]
    only: Vec<&'static str>,
    /// Exit with 1 also where something is not as the rules only recommend (the draft's SHOULD)
    #[arg(long)]
    strict: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a JUnit report, for a CI system, to this file
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

pub(crate) async fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let strict = args.strict;
    match check(args).await {
        Ok(report) => Ok(if report.holds(strict) { ExitCode::SUCCESS } else { 1.into() }),
        Err(error) => {
            print_note(format_args!("hapax: could not be checked: {error:#}"));
            Ok(2.into())
        }
    }
}

async fn check(args: CheckArgs) -> anyhow::Result<CheckReport> {
    let target = Target::new(&args)?;
    target.answers_as_asked().await?;
    let asked: Vec<_> = CHECKS
        .iter()
        .filter(|check| check.profiles.contains(&args.profile))
        .filter(|check| args.only.is_empty() || args.only.contains(&check.name))
        .collect();
    let mut report = CheckReport::new(target.url(), args.profile);
    if !args.json {
        print_line(report.heading());
    }
    let bar = progress_bar(Some(asked.len() as u64), "{pos}/{len} {msg}");
    for check in asked {
        bar.set_message(check.name);
        target.begin_check();
        let verdict = match (check.ask)(&target).await {
            Ok(()) => CheckVerdict::Holds,
            Err(NotHeld::Fails { expected, seen, wrong }) => {
                match args.profile.requires(check.name, wrong) {
                    true => CheckVerdict::Fails { expected, seen },
                    false => CheckVerdict::NotRecommended { expected, seen },
                }
            }
            Err(NotHeld::Skipped(why)) => CheckVerdict::Skipped(why),
            Err(NotHeld::CouldNotAsk(error)) => return Err(error.context(check.name)),
        };
        if let CheckVerdict::Fails { .. } | CheckVerdict::NotRecommended { .. } = verdict {
            // Executions that nobody waits for must not be counted by the next check.
            target.final_executions().await?;
        }
        let finding = CheckFinding { check, verdict, exchanges: target.exchanges() };
        if !args.json {
            bar.suspend(|| print_line(finding.message()));
        }
        report.findings.push(finding);
        bar.inc(1);
    }
    bar.finish_and_clear();
    print_line(if args.json { report.json().to_string() } else { report.summary() });
    if let Some(file) = &args.junit {
        let written = tokio::fs::write(file, report.junit()).await;
        written.with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(report)
}

fn header(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let (name, value) = text.split_once(':').ok_or("a header is NAME: VALUE")?;
    let name = name.trim().parse().map_err(|_| format!("{name:?} is no name of a header"))?;
    let value = value.trim().parse().map_err(|_| "the value has characters that no header has")?;
    Ok((name, value))
}

fn check_name(text: &str) -> Result<&'static str, String> {
    let names: Vec<_> = CHECKS.iter().map(|check| check.name).collect();
    let found = names.iter().find(|name| **name == text).copied();
    found.ok_or_else(|| format!("there are: {}", names.join(", ")))
}
