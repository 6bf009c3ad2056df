//! Clients that send the same keyed requests through the proxies, to a service that counts what it does.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hyper::Method;
use serde_json::json;
use tokio::net::TcpListener;

use super::TortureClient;
use crate::api_client::ApiClient;
use crate::history::{CallOutcome, Observation, ProxyAnswer};
use crate::recorder::HistoryRecorder;

const KEYS: u64 = 10;
const SECONDS: u64 = 3;

/// Starts the service behind the proxies; its URL. It ends with the runtime.
pub(crate) async fn start_upstream(recorder: Arc<HistoryRecorder>) -> anyhow::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let orders = post(async move |headers: HeaderMap| {
        let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
        let key = key.unwrap_or_default().trim_matches('"').to_owned();
        recorder.record_now(0, Observation::UpstreamEffect { key: key.clone() });
        let number = recorder.now();
        tokio::time::sleep(Duration::from_millis(number % 40)).await;
        (StatusCode::CREATED, format!("{key} was order {number}"))
    });
    let service = Router::new().route("/orders", orders);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}

pub(crate) async fn run(mut client: TortureClient) {
    while !client.is_over() {
        client.prepare_call().await;
        let key = client.key("order", KEYS, SECONDS);
        order(&mut client, key).await;
        client.pause(15).await;
    }
}

/// Sends the request of a key, also once more, when all faults are over; whether there was an answer.
pub(crate) async fn order(client: &mut TortureClient, key: String) -> bool {
    let request = ApiClient::request(Method::POST, "/orders")
        .header("Idempotency-Key", format!("\"{key}\""))
        .header("Authorization", "Bearer torture");
    let from = client.now();
    let body = json!({"key": key});
    let Some(answer) = client.api.send(request, Some(body)).await else {
        client.wait_for_node().await;
        return false;
    };
    let outcome = match answer {
        Err(error) => CallOutcome::Unknown(error.to_string()),
        Ok(answer) => answer.outcome(|answer| {
            let body = String::from_utf8(answer.body.to_vec()).ok()?;
            Some(ProxyAnswer { body, replayed: answer.replayed })
        }),
    };
    let is_answered = !matches!(outcome, CallOutcome::Unknown(_));
    client.record(from, Observation::ProxyRequest { key, outcome });
    is_answered
}
