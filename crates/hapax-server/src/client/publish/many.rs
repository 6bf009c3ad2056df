//! Many events, in batches and in order. Whatever happens on the way, a batch may be sent again: what
//! was published is recognised.

use std::process::ExitCode;
use std::time::Duration;

use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::lines::{self, Line};
use super::tally::{Outcome, Tally};
use crate::client::{Answer, Api, Call, Failure, note};

/// The bytes of one batch, well below what a server takes by default.
const LARGEST: usize = 512 << 10;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct Results {
    results: Vec<Outcome>,
}

pub(super) async fn publish(
    api: &Api,
    at_most: usize,
    retry_for: Duration,
    json: bool,
) -> Result<ExitCode, Failure> {
    let mut source = lines::read();
    let bar = bar();
    let mut tally = Tally::default();
    let mut held = None;
    let ended = loop {
        let batch = match gather(&mut source, &mut held, at_most).await {
            Ok(batch) if batch.is_empty() => break Ok(()),
            Ok(batch) => batch,
            Err(text) => break Err(Failure::Local(text)),
        };
        let read: u64 = batch.iter().map(|line| line.bytes.len() as u64 + 1).sum();
        if let Err(failure) = send(api, batch, retry_for, &mut tally, &bar).await {
            break Err(failure);
        }
        bar.inc(read);
    };
    bar.finish_and_clear();
    tally.shown(json);
    ended.map(|()| tally.exit())
}

/// As many lines as are there, up to a batch; none at the end. A pipe that is slow is not waited for:
/// what has come goes out.
async fn gather(
    source: &mut mpsc::Receiver<Result<Line, String>>,
    held: &mut Option<Line>,
    at_most: usize,
) -> Result<Vec<Line>, String> {
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
        if bytes > LARGEST {
            *held = Some(line);
            break;
        }
        batch.push(line);
    }
    Ok(batch)
}

async fn send(
    api: &Api,
    mut batch: Vec<Line>,
    retry_for: Duration,
    tally: &mut Tally,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    batch.retain(|line| match serde_json::from_slice::<IgnoredAny>(&line.bytes) {
        Ok(_) => true,
        Err(error) => {
            tally.refuse(bar, line, &format!("no JSON: {error}"));
            false
        }
    });
    if batch.is_empty() {
        return Ok(());
    }
    match send_lines(api, &batch, retry_for).await {
        Ok(outcomes) => {
            batch.iter().zip(&outcomes).for_each(|(line, one)| tally.count(bar, line, one));
            Ok(())
        }
        // One that is malformed fails the whole array: one by one it is found, and harms no other.
        Err(failure) if failure.blames_the_request() => {
            for line in &batch {
                match send_lines(api, std::slice::from_ref(line), retry_for).await {
                    Ok(outcomes) => tally.count(bar, line, &outcomes[0]),
                    Err(failure) if failure.blames_the_request() => {
                        tally.refuse(bar, line, &failure.text());
                    }
                    Err(failure) => return Err(failure),
                }
            }
            Ok(())
        }
        Err(failure) => Err(failure),
    }
}

async fn send_lines(
    api: &Api,
    batch: &[Line],
    retry_for: Duration,
) -> Result<Vec<Outcome>, Failure> {
    let lines: Vec<_> = batch.iter().map(|line| line.bytes.as_slice()).collect();
    let body = [b"[", &lines.join(&b",\n"[..])[..], b"]"].concat();
    let call = || Call::new(Method::POST, &["events"]).body(body.clone());
    let Results { results } = persist(api, call, retry_for).await?.read()?;
    if results.len() == batch.len() { Ok(results) } else { Err(Failure::not_hapax()) }
}

/// Sends it again where the server, or the way to it, failed for now: publishing is idempotent.
pub(super) async fn persist(
    api: &Api,
    call: impl Fn() -> Call,
    retry_for: Duration,
) -> Result<Answer, Failure> {
    let until = Instant::now() + retry_for;
    let mut pause = FIRST_PAUSE;
    loop {
        match api.send(call()).await {
            Err(failure) if failure.is_transient() && Instant::now() + pause < until => {
                if pause == FIRST_PAUSE {
                    note(format_args!("hapax: trying again: {}", failure.text()));
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            answer => return answer,
        }
    }
}

/// By bytes where standard input is a file, else what has gone by. Drawn on standard error, and only
/// where that is a terminal.
fn bar() -> ProgressBar {
    let file = std::fs::metadata("/dev/stdin").ok().filter(std::fs::Metadata::is_file);
    let (bar, template) = match file {
        Some(file) => {
            let bar = ProgressBar::new(file.len());
            (bar, "{bar:30} {bytes}/{total_bytes} ({bytes_per_sec}, {eta} left)")
        }
        None => (ProgressBar::new_spinner(), "{spinner} {bytes} ({bytes_per_sec})"),
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
