//! Clients that begin the same commands, run those that they are granted, and complete, fail or forget them.

use hyper::Method;
use serde_json::{Value, json};

use super::{LEASE, TortureClient};
use crate::api_client::{ApiAnswer, ApiClient};
use crate::history::{CallOutcome, CommandAnswer, Observation};

const KEYS: u64 = 12;
const SECONDS: u64 = 4;

/// The fingerprints of a request, and of another one under the same key.
const FINGERPRINTS: [&str; 2] = ["same", "another"];

struct RunningAttempt {
    key: String,
    token: String,
    attempt: u64,
}

pub(crate) async fn run(mut client: TortureClient) {
    while !client.is_over() {
        client.prepare_call().await;
        // Sometimes a key of a few seconds ago: its answer must still be there.
        let key = client.key("command", KEYS, SECONDS);
        let key = if client.random.one_in(5) { earlier(&mut client, key) } else { key };
        let fingerprint = FINGERPRINTS[usize::from(client.random.one_in(25))];
        let outcome = begin(&mut client, &key, fingerprint).await;
        if let Some(CallOutcome::Done((CommandAnswer::Granted { attempt, .. }, Some(token)))) =
            outcome
        {
            execute(&mut client, RunningAttempt { key, token, attempt }).await;
        }
        client.pause(15).await;
    }
}

/// A key of an earlier generation.
fn earlier(client: &mut TortureClient, key: String) -> String {
    let generation = client.now() / 1_000_000 / SECONDS;
    let back = client.random.below(generation.min(15) + 1);
    let number = key.rsplit('-').next().unwrap_or("0");
    format!("command-{}-{number}", generation - back)
}

/// Asks for the answer of a key once more, when all faults are over; whether there was one.
pub(crate) async fn ask_again(client: &mut TortureClient, key: &str) -> bool {
    for fingerprint in FINGERPRINTS {
        match begin(client, key, fingerprint).await {
            None | Some(CallOutcome::Unknown(_)) => return false,
            Some(CallOutcome::Done(_)) => return true,
            // The answer may be that of the other request.
            Some(CallOutcome::Refused(_)) => {}
        }
    }
    true
}

/// Begins a command; its answer, and the token of a granted attempt. `None` if it was not sent.
async fn begin(
    client: &mut TortureClient,
    key: &str,
    fingerprint: &str,
) -> Option<CallOutcome<(CommandAnswer, Option<String>)>> {
    let lease = LEASE.as_millis() as u64;
    let lease_ms = *client.random.pick(&[lease / 3, lease]);
    let rerun = client.random.one_in(2);
    let request = ApiClient::request(Method::POST, &format!("/v1/commands/torture/{key}"));
    let body = json!({
        "fingerprint": fingerprint,
        "lease_ms": lease_ms,
        "wait_ms": client.random.pick(&[0, 200]),
        "on_unknown": if rerun { "rerun" } else { "refuse" },
    });
    let from = client.now();
    let Some(outcome) = client.api.call(request, Some(body), read_answer).await else {
        client.wait_for_node().await;
        return None;
    };
    let (key, fingerprint) = (key.to_owned(), fingerprint.to_owned());
    let heard = outcome.clone().map(|(answer, _)| answer);
    client.record(
        from,
        Observation::CommandBegin { key, fingerprint, rerun, lease_ms, outcome: heard },
    );
    Some(outcome)
}

/// The answer, and the token of a granted attempt.
fn read_answer(answer: &ApiAnswer) -> Option<(CommandAnswer, Option<String>)> {
    let answer = answer.json();
    if answer["state"] == "completed" {
        return Some((CommandAnswer::Replayed(answer["body"].as_str()?.to_owned()), None));
    }
    let number = |name: &str| answer[name].as_u64();
    let granted = CommandAnswer::Granted { attempt: number("attempt")?, fence: number("fence")? };
    Some((granted, Some(answer["token"].as_str()?.to_owned())))
}

async fn execute(client: &mut TortureClient, running: RunningAttempt) {
    let (key, attempt) = (running.key.clone(), running.attempt);
    client.recorder.record_now(client.number, Observation::CommandEffect { key, attempt });
    let too_long = client.random.one_in(10);
    client.pause(if too_long { 2 * LEASE.as_millis() as u64 } else { 30 }).await;
    if client.random.one_in(5) && !renew(client, &running).await {
        return;
    }
    match client.random.below(12) {
        0 => {}
        1 | 2 => fail(client, &running).await,
        _ => complete(client, &running).await,
    }
}

async fn step(
    client: &mut TortureClient,
    running: &RunningAttempt,
    method: Method,
    body: Option<Value>,
) -> Option<(u64, CallOutcome<()>)> {
    let path = format!("/v1/commands/torture/{}", running.key);
    let mut request = ApiClient::request(method, &path);
    if body.is_none() {
        request = request.header("Hapax-Token", &running.token);
    }
    let from = client.now();
    let outcome = client.api.call(request, body, |_| Some(())).await;
    if outcome.is_none() {
        client.wait_for_node().await;
    }
    Some((from, outcome?))
}

/// Whether the attempt may go on.
async fn renew(client: &mut TortureClient, running: &RunningAttempt) -> bool {
    let lease_ms = LEASE.as_millis() as u64;
    let body = json!({"token": running.token, "lease_ms": lease_ms});
    let Some((from, outcome)) = step(client, running, Method::PATCH, Some(body)).await else {
        return true;
    };
    let goes_on = !outcome.is_refused();
    let (key, attempt) = (running.key.clone(), running.attempt);
    client.record(from, Observation::CommandRenew { key, attempt, lease_ms, outcome });
    goes_on
}

async fn complete(client: &mut TortureClient, running: &RunningAttempt) {
    // Bytes that a careless store would change.
    let text = format!("{:x} \"tea\"\n\u{2615}\t\\ \u{0}", client.unique());
    for _ in 0..4 {
        let body = json!({"token": running.token, "status": 201, "body": text});
        let Some((from, outcome)) = step(client, running, Method::PUT, Some(body)).await else {
            continue;
        };
        let again = matches!(outcome, CallOutcome::Unknown(_));
        let (key, attempt, body) = (running.key.clone(), running.attempt, text.clone());
        client.record(from, Observation::CommandComplete { key, attempt, body, outcome });
        if !again {
            return;
        }
    }
}

async fn fail(client: &mut TortureClient, running: &RunningAttempt) {
    for _ in 0..2 {
        let Some((from, outcome)) = step(client, running, Method::DELETE, None).await else {
            continue;
        };
        let again = matches!(outcome, CallOutcome::Unknown(_));
        let (key, attempt) = (running.key.clone(), running.attempt);
        client.record(from, Observation::CommandFail { key, attempt, outcome });
        if !again {
            return;
        }
    }
}
