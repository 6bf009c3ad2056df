//! Many events, in batches and in order. A batch may be sent again at any time: the server recognises
//! events that it has.

use std::io::{BufRead, Read};
use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use indicatif::ProgressBar;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::error::{CONFLICT, ERROR};
use crate::client::{
    CliError, ClientRequest, ClientResponse, ServerClient, print_line, print_note, progress_bar,
};

/// The most bytes of one batch, well below the server's default limit.
const MAX_BATCH: usize = 512 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Results {
    results: Vec<PublishOutcome>,
}

pub(super) async fn publish(
    client: &ServerClient,
    at_most: usize,
    retry_for: Duration,
    json: bool,
) -> Result<ExitCode, CliError> {
    let mut source = read_lines();
    let counts = PublishCounts::default();
    let mut publisher = BulkPublisher { client, retry_for, bar: bar(), counts };
    let mut held = None;
    let ended = loop {
        let batch = match next_batch(&mut source, &mut held, at_most).await {
            Ok(batch) if batch.is_empty() => break Ok(()),
            Ok(batch) => batch,
            Err(text) => break Err(CliError::Local(text)),
        };
        let read: u64 = batch.iter().map(|line| line.bytes.len() as u64 + 1).sum();
        if let Err(error) = publisher.send(batch).await {
            break Err(error);
        }
        publisher.bar.inc(read);
    };
    publisher.bar.finish_and_clear();
    publisher.counts.print(json);
    ended.map(|()| publisher.counts.exit_code())
}

/// The lines that have arrived, up to a batch; none at the end. A slow pipe is not waited for.
async fn next_batch(
    source: &mut mpsc::Receiver<Result<InputLine, String>>,
    held: &mut Option<InputLine>,
    at_most: usize,
) -> Result<Vec<InputLine>, String> {
    let first = match held.take() {
        Some(line) => line,
        None => match source.recv().await {
            Some(line) => line?,
            None => return Ok(Vec::new()),
        },
    };
    let mut bytes = first.bytes.len();
    let mut batch = vec![first];
    while batch.len() < at_most {
        let Ok(line) = source.try_recv() else { break };
        let line = line?;
        bytes += line.bytes.len();
        if bytes > MAX_BATCH {
            *held = Some(line);
            break;
        }
        batch.push(line);
    }
    Ok(batch)
}

struct BulkPublisher<'a> {
    client: &'a ServerClient,
    retry_for: Duration,
    bar: ProgressBar,
    counts: PublishCounts,
}

impl BulkPublisher<'_> {
    async fn send(&mut self, mut batch: Vec<InputLine>) -> Result<(), CliError> {
        batch.retain(|line| match serde_json::from_slice::<IgnoredAny>(&line.bytes) {
            Ok(_) => true,
            Err(error) => {
                self.refuse(line, &format!("no JSON: {error}"));
                false
            }
        });
        if batch.is_empty() {
            return Ok(());
        }
        match self.send_lines(&batch).await {
            Ok(outcomes) => {
                batch.iter().zip(&outcomes).for_each(|(line, one)| self.count(line, one))
            }
            // A malformed event fails the whole array: send the lines one by one to find it.
            Err(error) if error.is_bad_request() => {
                for line in &batch {
                    match self.send_lines(std::slice::from_ref(line)).await {
                        Ok(outcomes) => self.count(line, &outcomes[0]),
                        Err(error) if error.is_bad_request() => self.refuse(line, &error.message()),
                        Err(error) => return Err(error),
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn send_lines(&self, batch: &[InputLine]) -> Result<Vec<PublishOutcome>, CliError> {
        let lines: Vec<_> = batch.iter().map(|line| line.bytes.as_slice()).collect();
        let body = [b"[", &lines.join(&b",\n"[..])[..], b"]"].concat();
        let request = || ClientRequest::new(Method::POST, &["events"]).body(body.clone());
        let response = send_with_retries(self.client, request, self.retry_for).await?;
        let Results { results } = response.read()?;
        if results.len() == batch.len() { Ok(results) } else { Err(CliError::not_hapax()) }
    }

    fn count(&mut self, at: &InputLine, outcome: &PublishOutcome) {
        let code = outcome.kind.rsplit('/').next().unwrap_or_default();
        match (outcome.status, code) {
            (201, _) => self.counts.published += 1,
            (200, _) => self.counts.duplicates += 1,
            (_, "event-conflict") => {
                self.counts.conflicts += 1;
                self.name(at, "known with another content (event-conflict)");
            }
            (_, "job-closed") => {
                self.counts.closed += 1;
                self.name(at, "its job is closed (job-closed)");
            }
            (_, _) => self.refuse(at, &outcome.detail),
        }
    }

    /// Counts and reports a line that is not an event.
    fn refuse(&mut self, at: &InputLine, why: &str) {
        self.counts.malformed += 1;
        self.name(at, why);
    }

    fn name(&self, at: &InputLine, why: &str) {
        let PublishCounts { conflicts, closed, malformed, .. } = self.counts;
        match (conflicts + closed + malformed).cmp(&NAMED) {
            std::cmp::Ordering::Greater => {}
            order => self.bar.suspend(|| {
                print_note(format_args!("hapax: line {}: {why}", at.number));
                if order.is_eq() {
                    print_note("hapax: … and further lines, which the summary counts");
                }
            }),
        }
    }
}

/// Retries a request after transient failures: publishing is idempotent.
pub(super) async fn send_with_retries(
    client: &ServerClient,
    request: impl Fn() -> ClientRequest,
    retry_for: Duration,
) -> Result<ClientResponse, CliError> {
    let until = Instant::now() + retry_for;
    let mut pause = FIRST_PAUSE;
    loop {
        match client.send(request()).await {
            Err(error) if error.is_transient() && Instant::now() + pause < until => {
                if pause == FIRST_PAUSE {
                    print_note(format_args!("hapax: trying again: {}", error.message()));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            response => return response,
        }
    }
}

/// The progress by bytes, against the size of a file as standard input.
fn bar() -> ProgressBar {
    match std::fs::metadata("/dev/stdin").ok().filter(std::fs::Metadata::is_file) {
        Some(file) => {
            let template = "{bar:30} {bytes}/{total_bytes} ({bytes_per_sec}, {eta} left)";
            progress_bar(Some(file.len()), template)
        }
        None => progress_bar(None, "{spinner} {bytes} ({bytes_per_sec})"),
    }
}

/// The longest line; the server's own limit is lower.
const MAX_LINE: u64 = 64 << 20;
const AHEAD: usize = 2000;

/// A line with content.
struct InputLine {
    /// Counted from 1, including empty lines.
    number: u64,
    bytes: Vec<u8>,
}

/// Reads lines in the background. After a read error there are no more.
fn read_lines() -> mpsc::Receiver<Result<InputLine, String>> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    // A thread outside the runtime, because a blocked read must not keep the process alive.
    std::thread::spawn(move || {
        let mut source = std::io::stdin().lock();
        for number in 1.. {
            let Some(line) = read_input_line(&mut source, number).transpose() else { return };
            let failed = line.is_err();
            let empty = line.as_ref().is_ok_and(|line| line.bytes.is_empty());
            if (!empty && sender.blocking_send(line).is_err()) || failed {
                return;
            }
        }
    });
    receiver
}

fn read_input_line(source: &mut impl BufRead, number: u64) -> Result<Option<InputLine>, String> {
    let mut bytes = Vec::new();
    let mut limited = source.take(MAX_LINE + 1);
    let read = limited.read_until(b'\n', &mut bytes);
    match read.map_err(|error| format!("line {number}: {error}"))? {
        0 => Ok(None),
        length if length as u64 > MAX_LINE => {
            Err(format!("line {number}: longer than {} MiB", MAX_LINE >> 20))
        }
        _ => Ok(Some(InputLine { number, bytes: bytes.trim_ascii().to_vec() })),
    }
}

/// The most unpublished lines that are named.
const NAMED: u64 = 20;

#[derive(Deserialize)]
struct PublishOutcome {
    status: u16,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    detail: String,
}

#[derive(Default)]
struct PublishCounts {
    published: u64,
    duplicates: u64,
    conflicts: u64,
    closed: u64,
    malformed: u64,
}

impl PublishCounts {
    fn print(&self, json: bool) {
        let Self { published, duplicates, conflicts, closed, malformed } = self;
        if json {
            print_line(json!({
                "published": published, "duplicates": duplicates, "conflicts": conflicts,
                "closed": closed, "malformed": malformed,
            }));
            return;
        }
        let also = [(conflicts, "conflicts"), (closed, "of closed jobs"), (malformed, "malformed")];
        let also = also.iter().filter(|(n, _)| **n > 0).map(|(n, what)| format!(", {n} {what}"));
        print_line(format!(
            "{published} published, {duplicates} duplicates{}",
            also.collect::<String>()
        ));
    }

    fn exit_code(&self) -> ExitCode {
        match (self.malformed, self.conflicts + self.closed) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => CONFLICT.into(),
            _ => ERROR.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_lines_are_numbered_and_need_no_final_newline() {
        let mut source = &b"{\"a\":1}\n\n {} \r\nlast"[..];
        let mut lines = Vec::new();
        for number in 1.. {
            match read_input_line(&mut source, number).unwrap() {
                Some(line) => lines.push(String::from_utf8(line.bytes).unwrap()),
                None => break,
            }
        }
        assert_eq!(lines, ["{\"a\":1}", "", "{}", "last"]);
    }
}
