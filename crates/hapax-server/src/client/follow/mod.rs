//! `hapax follow`: a job live in a terminal.

mod frames;
mod stream;

use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;
use tokio::time::Instant;

use super::failure::finish;
use super::publish::job_name;
use super::{Call, Connect, EXIT_CODES, Failure, duration, line, note};
use frames::Frame;
use stream::Stream;

const EXAMPLES: &str = "\
Examples:
  hapax follow scan/job-1                        from its first event to its last one
  hapax follow scan/job-1 --after 7-42           from a cursor: the id of an event
  hapax follow scan/job-1 --last-seq 19          after the producer's number
  hapax follow scan/job-1 --json | jq .data      one event to a line

It ends with the job's final event. A connection that is lost is made again, and goes on where it
was; where events were trimmed meanwhile, a gap and the job's state say so.";

/// The arguments of `hapax follow`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    connect: Connect,
    /// The job: DOMAIN/JOB
    job: String,
    /// Only what comes after this cursor, `<epoch>-<offset>`
    #[arg(long, value_name = "CURSOR", conflicts_with = "last_seq")]
    after: Option<String>,
    /// Only what comes after the event with this number
    #[arg(long, value_name = "SEQ")]
    last_seq: Option<u64>,
    /// How long to go on trying where the connection was lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m")]
    retry_for: Duration,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json = args.connect.json;
    finish(json, follow(args).await.map(|()| ExitCode::SUCCESS))
}

async fn follow(args: Args) -> Result<(), Failure> {
    let api = args.connect.api()?;
    let (domain, job_id) = job_name(&args.job)?;
    let mut place = Place { after: args.after, last_seq: args.last_seq };
    let mut retry = Duration::from_secs(1);
    // Whoever misspelt the address wants to know at once; later on, patience.
    let mut until = Instant::now();
    let mut told = false;
    loop {
        let call = Call::new(Method::GET, &["jobs", domain, job_id, "events"])
            .query("last_seq", place.last_seq)
            .header("last-event-id", place.after.clone());
        let mut pause = retry;
        match Stream::open(&api, call).await {
            Ok(None) => return Ok(()),
            Ok(Some(mut stream)) => {
                told = false;
                match read(&mut stream, &mut place, &mut retry, args.connect.json).await {
                    Read::All => return Ok(()),
                    // Perhaps that was the last one: the next answer tells.
                    Read::Some => pause = Duration::from_millis(100),
                    Read::Nothing => {}
                }
                until = Instant::now() + args.retry_for;
            }
            Err(failure) if failure.is_transient() && Instant::now() < until => {
                if !std::mem::replace(&mut told, true) {
                    note(format_args!("hapax: trying again: {}", failure.text()));
                }
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Where to go on.
struct Place {
    after: Option<String>,
    last_seq: Option<u64>,
}

/// What came of a connection.
enum Read {
    Nothing,
    Some,
    /// There will be no more.
    All,
}

/// Shows events until the stream ends.
async fn read(stream: &mut Stream, place: &mut Place, retry: &mut Duration, json: bool) -> Read {
    let mut came = Read::Nothing;
    while let Some(frame) = stream.next().await {
        if let Some(id) = &frame.id {
            *place = Place { after: Some(id.clone()), last_seq: None };
        }
        if let Some(said) = frame.retry {
            *retry = said.min(Duration::from_secs(60));
        }
        if frame.event == "end" {
            return Read::All;
        }
        if frame.data.is_empty() {
            continue;
        }
        came = Read::Some;
        if json {
            line(&frame.data);
        } else {
            show(&frame);
        }
    }
    came
}

fn show(frame: &Frame) {
    let data: Value = serde_json::from_str(&frame.data).unwrap_or_default();
    match frame.event.as_str() {
        "gap" => note(format_args!("hapax: events {} to {} are gone", data["from"], data["to"])),
        "snapshot" => line(format!("state  {}", event(&data))),
        _ => line(format!("{:>5}  {}", data["offset"].to_string(), event(&data))),
    }
}

fn event(event: &Value) -> String {
    let stage = event["stage"].as_str().unwrap_or("-");
    format!("{stage:<12} {:>4}  {}", event["seq"].to_string(), event["data"])
}
