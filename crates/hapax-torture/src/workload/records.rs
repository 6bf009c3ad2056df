//! Clients that read, write and delete records at the versions that they have seen, also old ones.

use std::collections::HashMap;

use hyper::Method;
use hyper::header::{IF_MATCH, IF_NONE_MATCH};
use serde_json::json;

use super::TortureClient;
use crate::api_client::{ApiAnswer, ApiClient};
use crate::history::{Observation, SeenRecord};

/// The version that a client believes to be stored, for each key; `None` for no record.
type SeenVersions = HashMap<String, Option<String>>;

pub(crate) async fn run(mut client: TortureClient) {
    let mut seen = SeenVersions::new();
    while !client.is_over() {
        client.prepare_call().await;
        let key = client.key("record", 4, 10);
        if seen.len() > 64 {
            seen.retain(|known, _| *known == key);
        }
        let known = seen.get(&key).cloned();
        let sent = match (client.random.below(10), known) {
            (0..4, _) | (_, None) => get(&mut client, &key, &mut seen).await,
            (4, Some(Some(version))) => delete(&mut client, &key, version, &mut seen).await,
            (_, Some(expected)) => put(&mut client, &key, expected, &mut seen).await,
        };
        if sent.is_none() {
            client.wait_for_node().await;
        }
        client.pause(6).await;
    }
}

/// Reads a record once more, when all faults are over; whether there was an answer.
pub(crate) async fn read_again(client: &mut TortureClient, key: &str) -> bool {
    let mut seen = SeenVersions::new();
    get(client, key, &mut seen).await.is_some() && seen.contains_key(key)
}

async fn get(client: &mut TortureClient, key: &str, seen: &mut SeenVersions) -> Option<()> {
    let request = ApiClient::request(Method::GET, &format!("/v1/records/{key}"));
    let from = client.now();
    let answer = client.api.send(request, None).await?;
    let outcome = match answer {
        Err(error) => crate::history::CallOutcome::Unknown(error.to_string()),
        Ok(answer) if answer.problem() == "record-missing" => {
            crate::history::CallOutcome::Done(None)
        }
        Ok(answer) => answer.outcome(|answer| Some(Some(read_record(answer)?))),
    };
    if let Some(found) = outcome.done() {
        seen.insert(key.to_owned(), found.as_ref().map(|record| record.version.clone()));
    }
    client.record(from, Observation::RecordGet { key: key.to_owned(), outcome });
    Some(())
}

fn read_record(answer: &ApiAnswer) -> Option<SeenRecord> {
    Some(SeenRecord { version: answer.etag.clone()?, value: answer.json()["n"].as_u64()? })
}

async fn put(
    client: &mut TortureClient,
    key: &str,
    expected: Option<String>,
    seen: &mut SeenVersions,
) -> Option<()> {
    let value = client.unique();
    let request = ApiClient::request(Method::PUT, &format!("/v1/records/{key}"));
    let request = match &expected {
        Some(version) => request.header(IF_MATCH, version),
        None => request.header(IF_NONE_MATCH, "*"),
    };
    let from = client.now();
    let body = json!({"n": value});
    let outcome = client.api.call(request, Some(body), |answer| answer.etag.clone()).await?;
    match &outcome {
        crate::history::CallOutcome::Done(version) => {
            seen.insert(key.to_owned(), Some(version.clone()));
        }
        // Mostly read again; sometimes the old version is sent again.
        _ if !client.random.one_in(4) => drop(seen.remove(key)),
        _ => {}
    }
    let key = key.to_owned();
    client.record(from, Observation::RecordPut { key, expected, value, outcome });
    Some(())
}

async fn delete(
    client: &mut TortureClient,
    key: &str,
    expected: String,
    seen: &mut SeenVersions,
) -> Option<()> {
    let request = ApiClient::request(Method::DELETE, &format!("/v1/records/{key}"))
        .header(IF_MATCH, &expected);
    let from = client.now();
    let outcome = client.api.call(request, None, |_| Some(())).await?;
    if outcome.done().is_some() {
        seen.insert(key.to_owned(), None);
    } else {
        seen.remove(key);
    }
    client.record(from, Observation::RecordDelete { key: key.to_owned(), expected, outcome });
    Some(())
}
