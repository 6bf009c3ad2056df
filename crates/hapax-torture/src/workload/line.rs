//! LINE: signed webhooks, delivered again and again to both gateways, and a bot that counts what it handles.
//!
//! The events are stickers, which take no lock: a locked event whose user is busy is answered with a text of the gateway and
//! not handled, so nobody could tell it from a lost one.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use bytes::Bytes;
use hapax_line::simulator::events;
use hapax_line::{ChannelSecrets, SIGNATURE_HEADER};
use hyper::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{LOST_TIMEOUT, TortureClient};
use crate::api_client::ApiClient;
use crate::history::{CallOutcome, Observation};
use crate::installation::Installation;
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;

const SECRET: &str = "torture-secret";
/// How many events of a source come one after the other before another source is used.
const EVENTS: usize = 40;
/// How long the gateways may make no progress after the faults.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Starts the bot; its URL. It ends with the runtime.
pub(crate) async fn start_bot(recorder: Arc<HistoryRecorder>, seed: u64) -> anyhow::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/webhook", listener.local_addr()?);
    let calls = Arc::new(AtomicU64::new(0));
    let handler = post(async move |headers: HeaderMap, body: Bytes| {
        let number = calls.fetch_add(1, Ordering::SeqCst);
        let mut random = SeededRandom::new(seed, 1 << 41 | number);
        let webhook: Value = serde_json::from_slice(&body).unwrap_or_default();
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let number = |name: &str| text(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let event = &webhook["events"][0];
        // Now and then the bot fails before it has done anything.
        let ok = !random.one_in(15);
        recorder.record_now(
            0,
            Observation::LineHandled {
                source: event["source"]["userId"].as_str().unwrap_or_default().to_owned(),
                event: event["webhookEventId"].as_str().unwrap_or_default().to_owned(),
                key: text("idempotency-key").unwrap_or_default().to_owned(),
                attempt: number("hapax-attempt"),
                fence: number("hapax-fence"),
                ok,
            },
        );
        tokio::time::sleep(random.millis(0, 15)).await;
        if ok { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR }
    });
    let service = Router::new().route("/webhook", handler);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}

/// Adds two gateways before this bot. Events are refused while the store is away: what is handled from memory is not promised.
pub(crate) fn add_gateways(installation: &mut Installation, bot: &str) -> anyhow::Result<()> {
    let url = installation.store_url.clone();
    for name in ["line-1", "line-2"] {
        let arguments = [
            "line",
            "--store",
            &url,
            "--upstream",
            bot,
            "--channel-secret",
            SECRET,
            "--channel-access-token",
            "torture-token",
            "--api-base",
            "http://127.0.0.1:9",
            "--on-store-error",
            "closed",
            "--lease",
            "1s",
            "--backoff",
            "20ms",
            "--backoff-max",
            "200ms",
            "--max-attempts",
            "100000",
        ];
        installation.add(name, &arguments)?;
    }
    Ok(())
}

pub(crate) async fn run(mut client: TortureClient, secrets: ChannelSecrets) {
    for generation in 0_u64.. {
        let source = format!("U{:032x}", u64::from(client.number) << 32 | generation);
        let mut before: Vec<Value> = Vec::new();
        for _ in 0..EVENTS {
            if client.is_over() {
                return;
            }
            let event = events::sticker(&source);
            deliver(&mut client, &secrets, &source, &event).await;
            before.push(event);
            // LINE delivers again what it believes lost; also old events, to any gateway.
            if client.random.one_in(4) {
                let again = events::redelivered(client.random.pick(&before));
                send(&mut client, &secrets, &source, &again).await;
            }
            client.pause(20).await;
        }
    }
}

/// The channel's secret.
pub(crate) fn secrets() -> anyhow::Result<ChannelSecrets> {
    Ok(ChannelSecrets::new(SECRET)?)
}

/// Delivers an event until it is answered with 200.
async fn deliver(
    client: &mut TortureClient,
    secrets: &ChannelSecrets,
    source: &str,
    event: &Value,
) {
    let mut sent = event.clone();
    while !send(client, secrets, source, &sent).await && !client.is_over() {
        client.pause(100).await;
        sent = events::redelivered(event);
    }
}

/// Sends a webhook of one event; whether it was answered with 200.
async fn send(
    client: &mut TortureClient,
    secrets: &ChannelSecrets,
    source: &str,
    event: &Value,
) -> bool {
    client.prepare_call().await;
    let body = json!({"destination": "Utorture", "events": [event]});
    let request = ApiClient::request(Method::POST, "/line/webhook")
        .header(SIGNATURE_HEADER, secrets.sign(body.to_string().as_bytes()));
    let from = client.now();
    let Some(outcome) = client.api.call(request, Some(body), |_| Some(())).await else {
        client.wait_for_node().await;
        return false;
    };
    let is_done = outcome.done().is_some();
    let event = event["webhookEventId"].as_str().unwrap_or_default().to_owned();
    client.record(from, Observation::LineWebhook { source: source.to_owned(), event, outcome });
    is_done
}

/// Waits until every event that was answered with 200 is handled, or nothing moves any more. What a failover may have lost
/// is not waited for long.
pub(crate) async fn drain(recorder: &HistoryRecorder, may_be_lost: bool) {
    let timeout = if may_be_lost { LOST_TIMEOUT } else { DRAIN_TIMEOUT };
    let answered: HashSet<String> = recorder.find(|what| match what {
        Observation::LineWebhook { event, outcome: CallOutcome::Done(()), .. } => {
            Some(event.clone())
        }
        _ => None,
    });
    let (mut most, mut progress) = (0, Instant::now());
    while progress.elapsed() < timeout {
        let handled: HashSet<String> = recorder.find(|what| match what {
            Observation::LineHandled { event, ok: true, .. } => Some(event.clone()),
            _ => None,
        });
        if answered.is_subset(&handled) {
            return;
        }
        if handled.len() > most {
            (most, progress) = (handled.len(), Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
