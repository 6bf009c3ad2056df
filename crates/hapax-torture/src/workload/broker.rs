//! Outbox, relay, NATS JetStream, and a consumer whose inbox entry and effect are one transaction.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hapax::queue::QueueName;
use hapax_relay::consumer::{MessageSource, NatsSource};
use hapax_testkit::Nats;
use serde_json::{Value, json};

use super::outbox::{ConsumerDatabase, OutboxWriter};
use super::{LOST_TIMEOUT, TortureClient};
use crate::history::{CallOutcome, Observation};
use crate::installation::Installation;
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;

const QUEUE: &str = "broker";
const STREAM: &str = "TORTURE";
const DURABLE: &str = "torture";
const KEYS: u64 = 6;
/// How many messages may wait for their effects.
const MOST_WAITING: u64 = 60;
/// How long nothing may move after the faults.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// The queue of this workload's messages.
pub(crate) fn queue() -> anyhow::Result<QueueName> {
    QueueName::new(QUEUE).context("the queue's name")
}

/// Starts the broker with a stream, the relays into it, and the consumer, which ends with the runtime.
pub(crate) fn start(
    installation: &mut Installation,
    recorder: Arc<HistoryRecorder>,
    database: Arc<ConsumerDatabase>,
    seed: u64,
) -> anyhow::Result<()> {
    let nats = Nats::start();
    let stream = json!({"name": STREAM, "subjects": ["torture"], "storage": "file"});
    request(nats.port(), &format!("$JS.API.STREAM.CREATE.{STREAM}"), &stream)?;
    // What a consumer did not acknowledge comes again soon, not after half a minute.
    let config =
        json!({"durable_name": DURABLE, "ack_policy": "explicit", "ack_wait": 2_000_000_000_u64});
    let subject = format!("$JS.API.CONSUMER.DURABLE.CREATE.{STREAM}.{DURABLE}");
    request(nats.port(), &subject, &json!({"stream_name": STREAM, "config": config}))?;
    let (url, to) = (installation.store_url.clone(), nats.url());
    for name in ["broker-relay-1", "broker-relay-2"] {
        let arguments = [
            "relay",
            "--from",
            &url,
            "--to",
            &to,
            "--queue",
            QUEUE,
            "--lease",
            "1s",
            "--backoff",
            "20ms",
            "--backoff-max",
            "200ms",
            "--max-attempts",
            "100000",
            "--send-timeout",
            "2s",
        ];
        installation.add(name, &arguments)?;
    }
    let source = NatsSource::new(&nats.url(), STREAM, DURABLE)?;
    tokio::spawn(consume(source, recorder, database, SeededRandom::new(seed, 1 << 42)));
    installation.broker = Some(nats);
    Ok(())
}

/// A request of JetStream's API, which has to succeed.
fn request(port: u16, subject: &str, body: &Value) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let body = body.to_string();
    write!(stream, "CONNECT {{\"verbose\":false}}\r\nSUB reply 1\r\n")?;
    write!(stream, "PUB {subject} reply {}\r\n{body}\r\n", body.len())?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line.starts_with('{') {
            let answer: Value = serde_json::from_str(&line)?;
            anyhow::ensure!(answer["error"].is_null(), "{subject}: {line}");
            return Ok(());
        }
    }
    bail!("{subject}: no answer")
}

/// Handles messages one after the other; some are handled, and the consumer dies before it acknowledges.
async fn consume(
    source: NatsSource,
    recorder: Arc<HistoryRecorder>,
    database: Arc<ConsumerDatabase>,
    mut random: SeededRandom,
) {
    loop {
        let Ok(deliveries) = source.receive(10).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        for delivery in deliveries {
            let id = delivery.message().id.clone();
            recorder.record_now(0, Observation::BrokerDelivery { id: id.clone() });
            let is_stored = !random.one_in(15) && database.receive(&id).await;
            if !is_stored {
                let _ = delivery.retry_after(Duration::from_millis(50)).await;
            } else if !random.one_in(15) {
                let _ = delivery.ack().await;
            }
        }
    }
}

pub(crate) async fn run(
    mut client: TortureClient,
    mut writer: OutboxWriter,
    database: Arc<ConsumerDatabase>,
    queue: QueueName,
) {
    let keys = KEYS * u64::from(client.factor);
    while !client.is_over() {
        if database.waiting() > MOST_WAITING * u64::from(client.factor) {
            client.pause(100).await;
            database.give_up_if_stuck();
            continue;
        }
        let key = format!("key-{}", client.random.below(keys));
        let rolls_back = client.random.one_in(5);
        let held_open = client.random.millis(0, 30);
        let from = client.now();
        let (id, outcome) = writer.write(&queue, &key, held_open, rolls_back).await;
        if outcome.done().is_some() {
            database.count_commit();
        }
        let failed = !rolls_back && outcome.done().is_none();
        client.record(from, Observation::BrokerCommit { id, key, outcome });
        client.pause(if failed { 300 } else { 60 }).await;
    }
}

/// Waits until every committed message has had its effect, or nothing moves any more; then records all effects. What a
/// failover may have lost is not waited for long.
pub(crate) async fn drain(
    recorder: &HistoryRecorder,
    database: &ConsumerDatabase,
    may_be_lost: bool,
) -> anyhow::Result<()> {
    let timeout = if may_be_lost { LOST_TIMEOUT } else { DRAIN_TIMEOUT };
    let committed: HashSet<String> = recorder.find(|what| match what {
        Observation::BrokerCommit { id, outcome: CallOutcome::Done(()), .. } => Some(id.clone()),
        _ => None,
    });
    let (mut most, mut progress) = (0, Instant::now());
    loop {
        let effects = database.effects().await;
        let count = effects.as_ref().map_or(0, Vec::len);
        if count > most {
            (most, progress) = (count, Instant::now());
        }
        let is_done = effects.as_ref().is_ok_and(|effects| {
            let seen: HashSet<&String> = effects.iter().collect();
            committed.iter().all(|id| seen.contains(id))
        });
        if is_done || progress.elapsed() > timeout {
            for id in effects? {
                recorder.record_now(0, Observation::BrokerEffect { id });
            }
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
