//! Clients that take a lock, write to a resource with their fence, and let go, sometimes much too late.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::Method;
use serde_json::json;

use super::{LEASE, TortureClient};
use crate::api_client::ApiClient;
use crate::history::{CallOutcome, Observation};

/// Remembers the largest fence of each key and refuses smaller ones.
#[derive(Default)]
pub(crate) struct FencedResource(Mutex<HashMap<String, u64>>);

impl FencedResource {
    fn write(&self, client: &TortureClient, key: &str, fence: u64) {
        let mut largest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stored = largest.entry(key.to_owned()).or_default();
        let accepted = fence >= *stored;
        *stored = fence.max(*stored);
        let key = key.to_owned();
        // Within the lock, so that the history has the writes in their order.
        client
            .recorder
            .record_now(client.number, Observation::FencedWrite { key, fence, accepted });
    }
}

struct HeldLock {
    key: String,
    token: String,
    fence: u64,
}

pub(crate) async fn run(mut client: TortureClient, resource: Arc<FencedResource>) {
    while !client.is_over() {
        client.prepare_call().await;
        match take(&mut client).await {
            Some(held) => use_lock(&mut client, &resource, held).await,
            None => client.pause(40).await,
        }
    }
}

fn random_ttl(client: &mut TortureClient) -> u64 {
    let lease = LEASE.as_millis() as u64;
    *client.random.pick(&[lease / 4, lease / 2, lease])
}

async fn take(client: &mut TortureClient) -> Option<HeldLock> {
    let key = client.key("lock", 3, 10);
    let ttl_ms = random_ttl(client);
    let wait_ms = *client.random.pick(&[0, 0, 300]);
    let request = ApiClient::request(Method::POST, &format!("/v1/locks/{key}"));
    let body = json!({"ttl_ms": ttl_ms, "wait_ms": wait_ms});
    let from = client.now();
    let outcome = client.api.call(request, Some(body), |answer| {
        let answer = answer.json();
        Some((answer["token"].as_str()?.to_owned(), answer["fence"].as_u64()?))
    });
    let Some(outcome) = outcome.await else {
        client.wait_for_node().await;
        return None;
    };
    let granted = outcome.done().cloned();
    let recorded = outcome.map(|(_, fence)| fence);
    client.record(from, Observation::LockTake { key: key.clone(), ttl_ms, outcome: recorded });
    granted.map(|(token, fence)| HeldLock { key, token, fence })
}

async fn use_lock(client: &mut TortureClient, resource: &FencedResource, held: HeldLock) {
    for _ in 0..=client.random.below(3) {
        resource.write(client, &held.key, held.fence);
        // A late owner goes on as if it had the lock; the resource has to refuse it.
        let longest = if client.random.one_in(12) { 2 * LEASE.as_millis() as u64 } else { 40 };
        client.pause(longest).await;
        if client.random.one_in(3) && !renew(client, &held).await {
            resource.write(client, &held.key, held.fence);
            break;
        }
    }
    resource.write(client, &held.key, held.fence);
    // Some owners disappear.
    if !client.random.one_in(15) {
        release(client, &held).await;
    }
}

async fn renew(client: &mut TortureClient, held: &HeldLock) -> bool {
    let ttl_ms = random_ttl(client);
    let request = ApiClient::request(Method::PUT, &format!("/v1/locks/{}", held.key));
    let body = json!({"token": held.token, "ttl_ms": ttl_ms});
    let from = client.now();
    let Some(outcome) = client.api.call(request, Some(body), |_| Some(())).await else {
        return true;
    };
    let goes_on = !outcome.is_refused();
    let (key, fence) = (held.key.clone(), held.fence);
    client.record(from, Observation::LockRenew { key, fence, ttl_ms, outcome });
    goes_on
}

async fn release(client: &mut TortureClient, held: &HeldLock) {
    for _ in 0..2 {
        let request = ApiClient::request(Method::DELETE, &format!("/v1/locks/{}", held.key))
            .header("Hapax-Token", &held.token);
        let from = client.now();
        let Some(outcome) = client.api.call(request, None, |_| Some(())).await else {
            client.wait_for_node().await;
            continue;
        };
        let again = matches!(outcome, CallOutcome::Unknown(_));
        let (key, fence) = (held.key.clone(), held.fence);
        client.record(from, Observation::LockRelease { key, fence, outcome });
        if !again {
            return;
        }
    }
}
