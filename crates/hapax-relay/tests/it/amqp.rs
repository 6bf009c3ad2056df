//! RabbitMQ as a sink.

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use hapax_core::queue::QueueItem;
use hapax_relay::sinks::RabbitMqSink;
use hapax_relay::{CloudEvents, DeliveryError, OutboundMessage, Sink};
use hapax_testkit::RabbitMq;
use lapin::message::BasicGetMessage;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};

use crate::support::{
    WAIT_TIMEOUT, brisk, dead, drain, item, outlast_a_kill, stored, waits_for_room,
};

/// A broker takes seconds to start, so tests share one; a test that stops the broker starts its
/// own.
pub(crate) static SHARED: LazyLock<RabbitMq> = LazyLock::new(RabbitMq::start);

pub(crate) async fn channel(rabbit: &RabbitMq) -> (Connection, Channel) {
    let connection =
        Connection::connect(&rabbit.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    (connection, channel)
}

/// A new queue of the shared broker, and a sink that reaches it.
pub(crate) async fn queue(name: &str) -> (Connection, Channel, Arc<RabbitMqSink>) {
    let (connection, channel) = channel(&SHARED).await;
    declare(&channel, name).await;
    (connection, channel, Arc::new(RabbitMqSink::new(&SHARED.url()).unwrap()))
}

pub(crate) async fn declare(channel: &Channel, queue: &str) {
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare(queue.into(), durable, FieldTable::default()).await.unwrap();
}

pub(crate) async fn all(channel: &Channel, queue: &str) -> Vec<BasicGetMessage> {
    let mut messages = Vec::new();
    let options = BasicGetOptions { no_ack: true };
    while let Some(message) = channel.basic_get(queue.into(), options).await.unwrap() {
        messages.push(message);
    }
    messages
}

async fn ids(channel: &Channel, queue: &str) -> Vec<String> {
    let messages = all(channel, queue).await.into_iter();
    messages.map(|m| m.delivery.properties.message_id().as_ref().unwrap().to_string()).collect()
}

fn row(topic: &str, payload: &str) -> QueueItem {
    QueueItem::new(&Default::default(), topic, payload.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_a_persistent_message_in_the_queue_of_its_topic() {
    let (_connection, channel, sink) = queue("amqp.plain").await;
    sink.check().await.unwrap();
    let row = row("amqp.plain", "{}").key("k").content_type("application/json").header("x", "y");
    let cloudevents = Some(CloudEvents::new("/shop"));
    sink.send(&OutboundMessage::new(row.clone()).cloudevents(cloudevents)).await.unwrap();
    let messages = all(&channel, "amqp.plain").await;
    let [message] = &messages[..] else { panic!("{}", messages.len()) };
    let properties = &message.delivery.properties;
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), row.id.to_string());
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(*properties.delivery_mode(), Some(2));
    let headers = properties.headers().as_ref().unwrap().inner();
    let get = |name: &str| match headers.get(name) {
        Some(AMQPValue::LongString(text)) => String::from_utf8_lossy(text.as_bytes()).into_owned(),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(get("Hapax-Topic"), "amqp.plain");
    assert_eq!((get("Hapax-Key"), get("x")), ("k".into(), "y".into()));
    assert_eq!(get("cloudEvents:source"), "/shop");
    assert_eq!(message.delivery.data.as_slice(), b"{}");
}

/// Returned messages and confirms arrive in no fixed order: if the answer for one row were taken
/// for another's, a row that no queue accepted would count as delivered.
#[tokio::test(flavor = "multi_thread")]
async fn amqp_unroutable_rows_fail_and_their_neighbours_do_not() {
    let (_connection, channel, sink) = queue("amqp.known").await;
    let topic = |n| if n % 4 == 0 { "amqp.unknown" } else { "amqp.known" };
    let rows: Vec<_> = (0..400).map(|n| row(topic(n), &n.to_string())).collect();
    let store = stored(&rows).await;
    drain(&store, sink, brisk().max_attempts(2), 100).await;
    let arrived = ids(&channel, "amqp.known").await;
    assert_eq!(arrived.len(), 300, "each once");
    let arrived: BTreeSet<_> = arrived.into_iter().collect();
    for row in rows.iter().filter(|row| &*row.topic == "amqp.known") {
        assert!(arrived.contains(&row.id.to_string()));
    }
    let dead = &dead(&*store).await[0];
    assert!(dead.reason.contains("unroutable"), "{}", dead.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_07_full_amqp_queue_uses_up_no_attempts() {
    let (_connection, channel) = channel(&SHARED).await;
    let mut table = FieldTable::default();
    table.insert("x-max-length".into(), AMQPValue::LongInt(1));
    table.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    let durable = QueueDeclareOptions { durable: true, ..Default::default() };
    channel.queue_declare("amqp.full".into(), durable, table).await.unwrap();
    let sink = RabbitMqSink::new(&SHARED.url()).unwrap();
    sink.send(&OutboundMessage::new(row("amqp.full", "0"))).await.unwrap();
    let store = stored(&[row("amqp.full", "1")]).await;
    // One message only: the relay fills the room before the queue could be seen empty.
    let makes_room = async || {
        let options = BasicGetOptions { no_ack: true };
        assert!(channel.basic_get("amqp.full".into(), options).await.unwrap().is_some());
    };
    waits_for_room(store, sink, makes_room).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_exchange_can_be_named_and_must_exist() {
    let (_connection, channel, _) = queue("amqp.fanned").await;
    let (exchange, table) = (|| "amqp.fan".into(), FieldTable::default);
    channel
        .exchange_declare(exchange(), ExchangeKind::Fanout, Default::default(), table())
        .await
        .unwrap();
    channel
        .queue_bind("amqp.fanned".into(), exchange(), "".into(), Default::default(), table())
        .await
        .unwrap();
    let sink = RabbitMqSink::new(&format!("{}?exchange=amqp.fan", SHARED.url())).unwrap();
    sink.send(&OutboundMessage::new(item("1"))).await.unwrap();
    let messages = all(&channel, "amqp.fanned").await;
    assert_eq!(messages[0].delivery.routing_key.as_str(), "orders");

    let nowhere = RabbitMqSink::new(&format!("{}?exchange=amqp.nowhere", SHARED.url())).unwrap();
    let failure = nowhere.check().await.unwrap_err();
    assert!(failure.to_string().contains("exchange"), "{failure}");
}

async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_kill_loses_nothing() {
    let rabbit = Arc::new(aside(RabbitMq::start).await);
    let restart = async || {
        let rabbit = rabbit.clone();
        aside(move || rabbit.restart()).await;
    };
    let (connection, before) = channel(&rabbit).await;
    declare(&before, "orders").await;
    drop(connection);
    // Restart the broker cleanly, so that the queue survives the kill below: losing the queue would be
    // the broker's fault, not the sink's.
    let clean = rabbit.clone();
    aside(move || clean.shut_down()).await;
    restart().await;
    let sink = RabbitMqSink::new(&rabbit.url()).unwrap();
    outlast_a_kill(sink, || rabbit.kill(), restart).await;
    let (_connection, after) = channel(&rabbit).await;
    let arrived: Vec<u32> = all(&after, "orders")
        .await
        .iter()
        .map(|m| std::str::from_utf8(&m.delivery.data).unwrap().parse().unwrap())
        .collect();
    assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), 600, "no row is missing");
    for key in 0..7 {
        let mut seen = BTreeSet::new();
        let mut first = arrived.iter().filter(|n| *n % 7 == key && seen.insert(**n));
        assert!(first.by_ref().is_sorted(), "first deliveries are in order");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_topic_that_is_too_long_is_refused_alone() {
    let (_connection, channel, sink) = queue("amqp.closing").await;
    let long = row(&"x".repeat(300), "1");
    let failure = sink.send(&OutboundMessage::new(long)).await.unwrap_err();
    assert!(failure.to_string().contains("255 bytes"), "{failure}");
    for n in 0..10 {
        sink.send(&OutboundMessage::new(row("amqp.closing", &n.to_string()))).await.unwrap();
    }
    assert_eq!(all(&channel, "amqp.closing").await.len(), 10);
}

/// Sends all rows at once, and returns the result of each.
async fn sent(sink: &Arc<RabbitMqSink>, rows: &[QueueItem]) -> Vec<Result<(), DeliveryError>> {
    let sends = rows.iter().cloned().map(|row| {
        let sink = sink.clone();
        tokio::spawn(async move { sink.send(&OutboundMessage::new(row)).await })
    });
    let mut results = Vec::new();
    for send in sends.collect::<Vec<_>>() {
        results.push(tokio::time::timeout(WAIT_TIMEOUT, send).await.unwrap().unwrap());
    }
    results
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_among_many_at_once_only_unroutable_rows_fail() {
    let (_connection, channel, sink) = queue("amqp.routed").await;
    // The unrouted rows: few, every second one, nearly all, and all.
    for routed in [|n| n % 10 != 0, |n| n % 2 == 0, |n| n % 32 == 0, |_| false] {
        for _ in 0..8 {
            let topic = |n| if routed(n) { "amqp.routed" } else { "amqp.unrouted" };
            let rows: Vec<_> = (0..256).map(|n| row(topic(n), "{}")).collect();
            let results = sent(&sink, &rows).await;
            let arrived: BTreeSet<_> = ids(&channel, "amqp.routed").await.into_iter().collect();
            for (n, (row, result)) in rows.iter().zip(results).enumerate() {
                assert_eq!(arrived.contains(&row.id.to_string()), routed(n), "row {n}");
                match result {
                    Ok(()) => assert!(routed(n), "row {n} went nowhere"),
                    Err(failure) => {
                        assert!(!routed(n), "row {n} arrived: {failure}");
                        assert!(failure.to_string().contains("unroutable"), "{failure}");
                    }
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_row_that_closes_its_channel_is_refused_alone() {
    let (_connection, channel, sink) = queue("amqp.closed").await;
    let mut rows: Vec<_> = (0..256).map(|n| row("amqp.closed", &n.to_string())).collect();
    // The broker expects a list in this header.
    rows[100] = row("amqp.closed", "100").header("CC", "x");
    let poison = rows[100].id;
    let mut left = rows;
    // A neighbour may be told that its connection was lost, which says nothing about that row: the
    // row is sent again, as the relay does.
    for _ in 0..50 {
        let results = sent(&sink, &left).await;
        let undecided = left.into_iter().zip(results).filter(|(row, result)| match result {
            Ok(()) => {
                assert_ne!(row.id, poison);
                false
            }
            Err(DeliveryError::Refused { .. }) => {
                assert_eq!(row.id, poison);
                false
            }
            Err(_) => true,
        });
        left = undecided.map(|(row, _)| row).collect();
        if left.is_empty() {
            break;
        }
    }
    assert!(left.is_empty(), "{} rows never got an answer", left.len());
    let arrived: BTreeSet<_> = ids(&channel, "amqp.closed").await.into_iter().collect();
    assert_eq!(arrived.len(), 255, "no row is missing");
}

#[tokio::test(flavor = "multi_thread")]
async fn amqp_abandoned_sends_harm_no_other() {
    let (_connection, channel, sink) = queue("amqp.patient").await;
    sink.send(&OutboundMessage::new(row("amqp.patient", "first"))).await.unwrap();
    for round in 0..10 {
        // These messages are in flight when their callers give up.
        for n in 0..64 {
            let topic = if n % 2 == 0 { "amqp.patient" } else { "amqp.impatient" };
            let (sink, given_up) = (sink.clone(), OutboundMessage::new(row(topic, "given up")));
            let limit = Duration::from_micros(n * 20);
            let _ = tokio::time::timeout(limit, sink.send(&given_up)).await;
        }
        let rows: Vec<_> = (0..64).map(|_| row("amqp.patient", "waited for")).collect();
        for result in sent(&sink, &rows).await {
            result.unwrap_or_else(|failure| panic!("round {round}: {failure}"));
        }
    }
    let arrived = all(&channel, "amqp.patient").await;
    let arrived = arrived.iter().filter(|m| m.delivery.data == b"waited for").count();
    assert_eq!(arrived, 640, "each once");
}
