//! Writers whose transactions carry a message, some of which roll back; a webhook that fails and forgets; and the inbox
//! behind it, in one transaction with the effect.

mod consumer;
mod writer;

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use hapax::Store;
use hapax::queue::QueueName;
use tokio::net::TcpListener;

pub(crate) use consumer::ConsumerDatabase;
pub(crate) use writer::OutboxWriter;

use super::TortureClient;
use crate::history::{CallOutcome, Observation};
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;

const KEYS: u64 = 6;
/// How many messages may wait for their effects.
const MOST_WAITING: u64 = 60;
/// How long the relays may make no progress after the faults.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);
/// How long they may take in all.
const WHOLE_DRAIN_TIMEOUT: Duration = Duration::from_secs(240);

/// Starts the webhook; its URL. It ends with the runtime.
pub(crate) async fn start_webhook(
    recorder: Arc<HistoryRecorder>,
    database: Arc<ConsumerDatabase>,
    seed: u64,
) -> anyhow::Result<String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let url = format!("http://{}/hook", listener.local_addr()?);
    let calls = Arc::new(AtomicU64::new(0));
    let hook = post(async move |headers: HeaderMap| {
        let mut random = SeededRandom::new(seed, 1 << 40 | calls.fetch_add(1, Ordering::SeqCst));
        if random.one_in(15) {
            return StatusCode::INTERNAL_SERVER_ERROR;
        }
        let id = headers.get("idempotency-key").and_then(|id| id.to_str().ok());
        let id = id.unwrap_or_default().trim_matches('"').to_owned();
        recorder.record_now(0, Observation::Delivery { id: id.clone() });
        let is_stored = database.receive(&id).await;
        // Sometimes the effect happened, and the answer says otherwise.
        if is_stored && !random.one_in(15) {
            StatusCode::NO_CONTENT
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    });
    let service = Router::new().route("/hook", hook);
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}

pub(crate) async fn run(
    mut client: TortureClient,
    mut writer: OutboxWriter,
    database: Arc<ConsumerDatabase>,
) {
    let queue = QueueName::outbox();
    let factor = u64::from(client.factor);
    while !client.is_over() {
        // The relays get the time that they need after a fault: at the end all messages have to be sent soon.
        if database.waiting() > MOST_WAITING * factor {
            client.pause(100).await;
            database.give_up_if_stuck();
            continue;
        }
        let key = format!("key-{}", client.random.below(KEYS * factor));
        let rolls_back = client.random.one_in(5);
        let held_open = client.random.millis(0, 30);
        let from = client.now();
        let (id, outcome) = writer.write(&queue, &key, held_open, rolls_back).await;
        if outcome.done().is_some() {
            database.count_commit();
        }
        let failed = !rolls_back && outcome.done().is_none();
        client.record(from, Observation::OutboxCommit { id, key, outcome });
        client.pause(if failed { 300 } else { 60 }).await;
    }
}

/// Waits until every committed message has had its effect, then records all effects. Where a failover may have lost
/// messages, it waits until none is left in this store.
pub(crate) async fn drain(
    recorder: &HistoryRecorder,
    database: &ConsumerDatabase,
    lossy: Option<Arc<dyn Store>>,
) -> anyhow::Result<()> {
    let committed: HashSet<String> = recorder.find(|what| match what {
        Observation::OutboxCommit { id, outcome: CallOutcome::Done(()), .. } => Some(id.clone()),
        _ => None,
    });
    let began = Instant::now();
    let (mut most, mut progress) = (0, began);
    loop {
        let effects = database.effects().await;
        let count = effects.as_ref().map_or(0, Vec::len);
        if count > most {
            (most, progress) = (count, Instant::now());
        }
        let is_late = progress.elapsed() > DRAIN_TIMEOUT || began.elapsed() > WHOLE_DRAIN_TIMEOUT;
        let is_done = effects.as_ref().is_ok_and(|effects| {
            let seen: HashSet<&String> = effects.iter().collect();
            committed.iter().all(|id| seen.contains(id))
        });
        let is_empty = match &lossy {
            None => false,
            Some(store) => match store.depth(&QueueName::outbox(), None).await {
                Ok(depth) => depth.waiting + depth.in_flight == 0,
                Err(_) => false,
            },
        };
        if is_done || is_empty || is_late {
            for id in effects? {
                recorder.record_now(0, Observation::InboxEffect { id });
            }
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
