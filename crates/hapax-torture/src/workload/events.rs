//! Jobs whose events are published with retries by several publishers, and followers that reconnect anywhere.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::TortureClient;
use crate::api_client::{ApiClient, open_stream};
use crate::history::{LogPosition, Observation, SeenFrame};

const FOLLOWERS: usize = 3;
const EVENTS: u64 = 12;
/// How often the last event is published again while followers wait for it.
const LAST_EVENT_INTERVAL: Duration = Duration::from_secs(5);
/// Nothing takes this long after the faults; a follower that does has lost an event.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(150);
/// Longer than the pause between two keep-alives.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(4);

/// Runs one job after the other. `new_client` makes the publishers and followers of a job.
pub(crate) async fn run(number: u32, mut new_client: impl FnMut() -> TortureClient) {
    for job in 0.. {
        let job = format!("job-{number}-{job}");
        let (mut one, mut two) = (new_client(), new_client());
        let mut followers = JoinSet::new();
        for _ in 0..FOLLOWERS {
            followers.spawn(follow(new_client(), job.clone()));
        }
        tokio::join!(
            publish_all(&mut one, &job, ["scan", "parse"]),
            publish_all(&mut two, &job, ["parse", "store"]),
        );
        publish(&mut one, &job, "done", 1_000_000, true).await;
        // A failover may lose the last event although it was acknowledged, and then nothing ends the job.
        let mut ended = std::pin::pin!(followers.join_all());
        while tokio::time::timeout(LAST_EVENT_INTERVAL, &mut ended).await.is_err() {
            publish(&mut one, &job, "done", 1_000_000, true).await;
        }
        if one.is_over() {
            return;
        }
    }
}

/// Publishes the events of two stages, one of which another publisher publishes too.
async fn publish_all(client: &mut TortureClient, job: &str, stages: [&str; 2]) {
    for seq in 1..=EVENTS {
        for stage in stages {
            if client.is_over() {
                return;
            }
            client.prepare_call().await;
            publish(client, job, stage, seq, false).await;
            client.pause(20).await;
        }
    }
}

/// Repeats an event until it is acknowledged.
async fn publish(client: &mut TortureClient, job: &str, stage: &str, seq: u64, last: bool) {
    let mut over_since = None;
    while !is_late(client, &mut over_since) {
        let request = ApiClient::request(Method::POST, "/v1/events");
        let event = json!({
            "domain": "torture", "job_id": job, "stage": stage, "seq": seq, "data": {"n": seq},
            "final": last,
        });
        let from = client.now();
        let outcome = client.api.call(request, Some(event), |answer| {
            let answer = answer.json();
            let (epoch, offset) = (answer["epoch"].as_u64()?, answer["offset"].as_u64()?);
            Some(LogPosition { epoch, offset })
        });
        let Some(outcome) = outcome.await else {
            client.wait_for_node().await;
            continue;
        };
        let acknowledged = outcome.done().is_some();
        let (job, stage) = (job.to_owned(), stage.to_owned());
        client.record(from, Observation::Publish { job, stage, seq, outcome });
        if acknowledged {
            return;
        }
        client.wait_for_node().await;
    }
}

/// Whether the faults have been over for too long.
fn is_late(client: &TortureClient, over_since: &mut Option<Instant>) -> bool {
    client.is_over() && over_since.get_or_insert_with(Instant::now).elapsed() > DRAIN_TIMEOUT
}

async fn follow(mut client: TortureClient, job: String) {
    let saw = |client: &TortureClient, frame: SeenFrame| {
        let what = Observation::Followed { job: job.clone(), frame };
        client.recorder.record_now(client.number, what);
    };
    saw(&client, SeenFrame::Start);
    let mut cursor: Option<String> = None;
    let mut over_since = None;
    while !is_late(&client, &mut over_since) {
        // Some connections live for a few events, some to the end.
        let most = if client.random.one_in(3) { u64::MAX } else { client.random.below(12) };
        let node = client.api.random_address(&mut client.random);
        let Some(mut stream) = FollowedStream::open(&node, &job, cursor.as_deref()).await else {
            client.wait_for_node().await;
            continue;
        };
        if stream.is_at_end {
            saw(&client, SeenFrame::End);
            return;
        }
        let (mut frames, mut is_behind_gap) = (0, false);
        while frames < most {
            let Some((id, frame)) = stream.next_frame().await else { break };
            cursor = id.or(cursor);
            frames += 1;
            is_behind_gap = frame == SeenFrame::Gap;
            saw(&client, frame);
        }
        if is_behind_gap {
            saw(&client, SeenFrame::CutBehindGap);
        }
    }
}

/// One connection of a follower.
struct FollowedStream {
    body: Incoming,
    /// Keeps the connection open.
    _sender: hyper::client::conn::http1::SendRequest<http_body_util::Full<Bytes>>,
    text: Vec<u8>,
    is_at_end: bool,
}

impl FollowedStream {
    async fn open(node: &str, job: &str, cursor: Option<&str>) -> Option<Self> {
        let path = format!("/v1/jobs/torture/{job}/events");
        let mut request = ApiClient::request(Method::GET, &path);
        if let Some(cursor) = cursor {
            request = request.header("Last-Event-ID", cursor);
        }
        let opened = tokio::time::timeout(SILENCE_TIMEOUT, open_stream(node, request)).await;
        let (response, sender) = opened.ok()?.ok()?;
        let is_at_end = response.status() == StatusCode::NO_CONTENT;
        let is_open = is_at_end || response.status() == StatusCode::OK;
        let body = response.into_body();
        is_open.then_some(Self { body, _sender: sender, text: Vec::new(), is_at_end })
    }

    /// The next frame that means something, with its id; `None` at the end of the connection.
    async fn next_frame(&mut self) -> Option<(Option<String>, SeenFrame)> {
        loop {
            if let Some(end) = self.text.windows(2).position(|window| window == b"\n\n") {
                let rest = self.text.split_off(end + 2);
                let text = String::from_utf8(std::mem::replace(&mut self.text, rest)).ok()?;
                if let Some(frame) = read_frame(&text) {
                    return Some(frame);
                }
                continue;
            }
            let read = tokio::time::timeout(SILENCE_TIMEOUT, self.body.frame()).await;
            self.text.extend_from_slice(read.ok()??.ok()?.data_ref()?);
        }
    }
}

/// A frame's id and meaning; `None` for comments and hints.
fn read_frame(text: &str) -> Option<(Option<String>, SeenFrame)> {
    let field = |name: &str| {
        let mut lines = text.lines().filter_map(|line| line.strip_prefix(name));
        lines.next().map(|value| value.trim_start().to_owned())
    };
    let id = field("id:");
    let position = || {
        let (epoch, offset) = id.as_deref()?.split_once('-')?;
        Some(LogPosition { epoch: epoch.parse().ok()?, offset: offset.parse().ok()? })
    };
    let frame = match field("event:")?.as_str() {
        "gap" => SeenFrame::Gap,
        "snapshot" => SeenFrame::Snapshot(position()?),
        "end" => return None,
        stage => {
            let event: Value = serde_json::from_str(&field("data:")?).ok()?;
            SeenFrame::Event(stage.to_owned(), event["seq"].as_u64()?, position()?)
        }
    };
    Some((id, frame))
}
