//! `hapax publish`: events of jobs, one by flags or many from standard input.

mod many;

use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use serde_json::json;

use super::error::exit_code_of;
use super::{
    CliError, ClientRequest, ServerArgs, duration, print_response, read_value, with_exit_codes,
};

const EXAMPLES: &str = "\
Examples:
  hapax publish scan/job-1 --stage vision --seq 10 --data '{\"status\":\"started\"}'
  hapax publish scan/job-1 --stage done --seq 51 --final
  hapax publish < events.ndjson                  one event to a line:
    {\"domain\":\"scan\",\"job_id\":\"job-1\",\"stage\":\"vision\",\"seq\":10,\"data\":{}}

The server recognises an event by domain, job, stage and seq, and counts it as a duplicate if it was
published before: after an interruption, publish the whole file again.";

const CODES: &str = "\
Of many events: 0 where each was published or known; else 1 where a line is malformed, 4 where one
is known with another content or its job is closed. The others are published all the same.";

#[derive(clap::Args)]
#[command(after_help = format!("{}\n\n{CODES}", with_exit_codes(EXAMPLES)))]
pub(crate) struct PublishArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// DOMAIN/JOB of one event; without it, events are read from standard input
    #[arg(value_name = "DOMAIN/JOB", requires_all = ["stage", "seq"])]
    job: Option<String>,
    /// The stage of the job
    #[arg(long, requires = "job")]
    stage: Option<String>,
    /// The event's number; the highest one is the job's state
    #[arg(long, requires = "job")]
    seq: Option<u64>,
    /// The event's data as JSON; `@FILE` reads a file, `-` standard input [default: null]
    #[arg(long, requires = "job")]
    data: Option<String>,
    /// This is the job's last event
    #[arg(long = "final", requires = "job")]
    closes: bool,
    /// How many events are sent at once
    #[arg(long, value_name = "NUMBER", default_value_t = 500)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// How long to retry while the server does not answer
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "1m")]
    retry_for: Duration,
}

pub(crate) async fn run(args: PublishArgs) -> anyhow::Result<ExitCode> {
    let json = args.server.json;
    exit_code_of(json, act(args).await)
}

async fn act(args: PublishArgs) -> Result<ExitCode, CliError> {
    let client = args.server.client()?;
    let Some(job) = &args.job else {
        return many::publish(&client, usize::from(args.batch), args.retry_for, args.server.json)
            .await;
    };
    let (domain, job_id) = job_name(job)?;
    let data = match args.data.as_deref() {
        None => serde_json::Value::Null,
        Some(given) => serde_json::from_slice(&read_value(Some(given))?)
            .map_err(|error| CliError::Usage(format!("--data takes JSON: {error}")))?,
    };
    let mut event = json!({
        "domain": domain, "job_id": job_id, "stage": args.stage, "seq": args.seq, "data": data,
    });
    if args.closes {
        event["final"] = true.into();
    }
    let body = event.to_string().into_bytes();
    let request = || ClientRequest::new(Method::POST, &["events"]).body(body.clone());
    let response = many::send_with_retries(&client, request, args.retry_for).await?;
    print_response(&response, args.server.json)?;
    Ok(ExitCode::SUCCESS)
}

/// `DOMAIN/JOB`; a job's id may have further slashes.
pub(super) fn job_name(text: &str) -> Result<(&str, &str), CliError> {
    let parts = text.split_once('/').filter(|(domain, job)| !domain.is_empty() && !job.is_empty());
    parts.ok_or_else(|| CliError::Usage("a job is DOMAIN/JOB, as in scan/job-1".into()))
}
