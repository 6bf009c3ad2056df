//! `hapax publish`: events of jobs, one by flags or many from standard input.

mod lines;
mod many;
mod tally;

use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::failure::finish;
use super::{Call, Connect, EXIT_CODES, Failure, duration, input, show};

const EXAMPLES: &str = "\
Examples:
  hapax publish scan/job-1 --stage vision --seq 10 --data '{\"status\":\"started\"}'
  hapax publish scan/job-1 --stage done --seq 51 --final
  hapax publish < events.ndjson                  one event to a line:
    {\"domain\":\"scan\",\"job_id\":\"job-1\",\"stage\":\"vision\",\"seq\":10,\"data\":{}}

An event that was published before is recognised by domain, job, stage and seq, and counts as a
duplicate: after an interruption simply publish the whole file again.";

const CODES: &str = "\
Of many events: 0 where each was published or known; else 1 where a line is malformed, 4 where one
is known with another content or its job is closed. The others are published all the same.";

/// The arguments of `hapax publish`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}\n\n{CODES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    connect: Connect,
    /// DOMAIN/JOB of one event; without it, events are read from standard input
    #[arg(value_name = "DOMAIN/JOB", requires_all = ["stage", "seq"])]
    job: Option<String>,
    /// What the job is at
    #[arg(long, requires = "job")]
    stage: Option<String>,
    /// The event's number; the highest one is the job's state
    #[arg(long, requires = "job")]
    seq: Option<u64>,
    /// What it says, as JSON; `@FILE` reads a file, `-` standard input [default: null]
    #[arg(long, requires = "job")]
    data: Option<String>,
    /// It is the job's last one
    #[arg(long = "final", requires = "job")]
    closes: bool,
    /// How many events are sent at once
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// How long to go on trying where the server does not answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1m")]
    retry_for: Duration,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json = args.connect.json;
    finish(json, act(args).await)
}

async fn act(args: Args) -> Result<ExitCode, Failure> {
    let api = args.connect.api()?;
    let Some(job) = &args.job else {
        return many::publish(&api, usize::from(args.batch), args.retry_for, args.connect.json)
            .await;
    };
    let (domain, job_id) = job_name(job)?;
    let data = match args.data.as_deref() {
        None => serde_json::Value::Null,
        Some(given) => serde_json::from_slice(&input::value(Some(given))?)
            .map_err(|error| Failure::Usage(format!("--data takes JSON: {error}")))?,
    };
    let mut event = json!({
        "domain": domain, "job_id": job_id, "stage": args.stage, "seq": args.seq, "data": data,
    });
    if args.closes {
        event["final"] = true.into();
    }
    let body = event.to_string().into_bytes();
    let call = || Call::new(Method::POST, &["events"]).body(body.clone());
    let answer = many::persist(&api, call, args.retry_for).await?;
    show(&answer, args.connect.json)?;
    Ok(ExitCode::SUCCESS)
}

/// `DOMAIN/JOB`; a job's id may have further slashes.
pub(super) fn job_name(text: &str) -> Result<(&str, &str), Failure> {
    let parts = text.split_once('/').filter(|(domain, job)| !domain.is_empty() && !job.is_empty());
    parts.ok_or_else(|| Failure::Usage("a job is DOMAIN/JOB, as in scan/job-1".into()))
}
