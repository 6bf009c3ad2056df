//! `hapax follow`: the events of a job, live in a terminal.

use std::process::ExitCode;
use std::time::Duration;

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;

use super::error::exit_code_of;
use super::publish::job_name;
use super::{
    CliError, ClientRequest, ServerArgs, ServerClient, duration, print_line, print_note,
    with_exit_codes,
};

#[derive(clap::Args)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax follow scan/job-1                        from its first event to its last one
  hapax follow scan/job-1 --after 7-42           from a cursor: the id of an event
  hapax follow scan/job-1 --last-seq 19          after the producer's number
  hapax follow scan/job-1 --json | jq .data      one event to a line

The command ends with the job's final event. After a lost connection it reconnects and continues at
its position; if events were trimmed meanwhile, a gap and the job's state are printed."))]
pub(crate) struct FollowArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// The job: DOMAIN/JOB
    job: String,
    /// Only events after this cursor, `<epoch>-<offset>`
    #[arg(long, value_name = "CURSOR", conflicts_with = "last_seq")]
    after: Option<String>,
    /// Only events after the one with this number
    #[arg(long, value_name = "SEQ")]
    last_seq: Option<u64>,
    /// How long to retry after the connection was lost
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5m")]
    retry_for: Duration,
}

pub(crate) async fn run(args: FollowArgs) -> anyhow::Result<ExitCode> {
    let json = args.server.json;
    exit_code_of(json, follow(args).await)
}

async fn follow(args: FollowArgs) -> Result<(), CliError> {
    let client = args.server.client()?;
    let (domain, job_id) = job_name(&args.job)?;
    let mut resume = ResumePoint { after: args.after, last_seq: args.last_seq };
    let mut retry = Duration::from_secs(1);
    // Report a failure of the first connection at once, because the address may be misspelt; retry later ones.
    let mut until = Instant::now();
    let mut told = false;
    loop {
        let request = ClientRequest::new(Method::GET, &["jobs", domain, job_id, "events"])
            .query("last_seq", resume.last_seq)
            .header("last-event-id", resume.after.clone());
        let mut pause = retry;
        match FollowStream::open(&client, request).await {
            Ok(None) => return Ok(()),
            Ok(Some(mut stream)) => {
                told = false;
                match read(&mut stream, &mut resume, &mut retry, args.server.json).await {
                    FollowEnd::All => return Ok(()),
                    // The job may be over: the next response tells.
                    FollowEnd::Some => pause = Duration::from_millis(100),
                    FollowEnd::Nothing => {}
                }
                until = Instant::now() + args.retry_for;
            }
            Err(error) if error.is_transient() && Instant::now() < until => {
                if !std::mem::replace(&mut told, true) {
                    print_note(format_args!("hapax: trying again: {}", error.message()));
                }
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(pause).await;
    }
}

struct ResumePoint {
    after: Option<String>,
    last_seq: Option<u64>,
}

enum FollowEnd {
    Nothing,
    Some,
    /// The job is closed: there will be no more events.
    All,
}

async fn read(
    stream: &mut FollowStream,
    resume: &mut ResumePoint,
    retry: &mut Duration,
    json: bool,
) -> FollowEnd {
    let mut came = FollowEnd::Nothing;
    while let Some(frame) = stream.next().await {
        if let Some(id) = &frame.id {
            *resume = ResumePoint { after: Some(id.clone()), last_seq: None };
        }
        if let Some(said) = frame.retry {
            *retry = said.min(Duration::from_secs(60));
        }
        if frame.event == "end" {
            return FollowEnd::All;
        }
        if frame.data.is_empty() {
            continue;
        }
        came = FollowEnd::Some;
        if json {
            print_line(&frame.data);
        } else {
            print_frame(&frame);
        }
    }
    came
}

fn print_frame(frame: &ReceivedFrame) {
    let data: Value = serde_json::from_str(&frame.data).unwrap_or_default();
    match frame.event.as_str() {
        "gap" => print_gap(data["from"].as_u64(), data["to"].as_u64()),
        "snapshot" => print_line(format!("state  {}", event(&data))),
        _ => print_line(format!("{:>5}  {}", data["offset"].to_string(), event(&data))),
    }
}

fn print_gap(from: Option<u64>, to: Option<u64>) {
    match (from, to) {
        (_, None) => print_note("hapax: the job is not known any more"),
        (Some(from), Some(to)) if from <= to => {
            print_note(format_args!("hapax: events {from} to {to} are gone"));
        }
        (_, Some(to)) => print_note(format_args!(
            "hapax: events were lost; the job goes on after event {to} of its log"
        )),
    }
}

fn event(event: &Value) -> String {
    let stage = event["stage"].as_str().unwrap_or("-");
    format!("{stage:<12} {:>4}  {}", event["seq"].to_string(), event["data"])
}

/// The server sends at least a comment every 15 s: after this long the connection is given up.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_LINE: usize = 64 << 20;

pub(super) struct FollowStream {
    body: Incoming,
    received: BytesMut,
    frames: SseParser,
}

impl FollowStream {
    /// `None` where there will be no more events.
    pub(super) async fn open(
        client: &ServerClient,
        request: ClientRequest,
    ) -> Result<Option<Self>, CliError> {
        let response = client.stream(request).await?;
        Ok((response.status() != StatusCode::NO_CONTENT).then(|| Self {
            body: response.into_body(),
            received: BytesMut::new(),
            frames: SseParser::default(),
        }))
    }

    /// The next complete frame; `None` where the stream has ended or nothing arrives any more.
    pub(super) async fn next(&mut self) -> Option<ReceivedFrame> {
        loop {
            let line = self.next_line().await?;
            if let Some(frame) = self.frames.take(&line) {
                return Some(frame);
            }
        }
    }

    async fn next_line(&mut self) -> Option<String> {
        let mut searched = 0;
        loop {
            if let Some(end) = self.received[searched..].iter().position(|byte| *byte == b'\n') {
                let line = self.received.split_to(searched + end + 1);
                let line = line.strip_suffix(b"\r\n").unwrap_or(&line[..line.len() - 1]);
                return String::from_utf8(line.to_vec()).ok();
            }
            searched = self.received.len();
            if searched > MAX_LINE {
                return None;
            }
            let frame = tokio::time::timeout(IDLE_TIMEOUT, self.body.frame()).await.ok()??.ok()?;
            if let Some(data) = frame.data_ref() {
                self.received.extend_from_slice(data);
            }
        }
    }
}

/// A frame of a stream: an event, or only a `retry`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReceivedFrame {
    pub(super) id: Option<String>,
    pub(super) event: String,
    pub(super) data: String,
    pub(super) retry: Option<Duration>,
}

/// Parses server-sent events line by line.
#[derive(Default)]
pub(super) struct SseParser(ReceivedFrame);

impl SseParser {
    /// Takes a line, and returns the frame that it ends.
    pub(super) fn take(&mut self, line: &str) -> Option<ReceivedFrame> {
        if line.is_empty() {
            let frame = std::mem::take(&mut self.0);
            return (frame != ReceivedFrame::default()).then_some(frame);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        let frame = &mut self.0;
        match field {
            "id" if !value.contains('\0') => frame.id = Some(value.into()),
            "event" => frame.event = value.into(),
            "data" => {
                if !frame.data.is_empty() {
                    frame.data.push('\n');
                }
                frame.data.push_str(value);
            }
            "retry" => frame.retry = value.parse().ok().map(Duration::from_millis),
            // Comments keep the connection alive; unknown fields are ignored.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sse_parser_reads_frames_as_the_standard_says() {
        let text = "retry: 1500\n\n: alive\n\nid: 7-1\nevent: vision\ndata: {\ndata:}\n\nid: 7-2\n";
        let mut frames = SseParser::default();
        let read: Vec<_> = text.lines().filter_map(|line| frames.take(line)).collect();
        let retry =
            ReceivedFrame { retry: Some(Duration::from_millis(1500)), ..ReceivedFrame::default() };
        let event = ReceivedFrame {
            id: Some("7-1".into()),
            event: "vision".into(),
            data: "{\n}".into(),
            retry: None,
        };
        assert_eq!(read, [retry, event], "what was cut off is no event");
    }
}
