//! NATS JetStream as a sink.

use std::sync::Arc;

use async_nats::ConnectOptions;
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::{self, Context, consumer, stream};
use futures_util::StreamExt;
use hapax_core::queue::QueueItem;
use hapax_relay::sinks::NatsSink;
use hapax_relay::{CloudEvents, DeliveryError, OutboundMessage, RetryHint, Sink};
use hapax_testkit::{Nats, TcpProxy};

use crate::support::{
    WAIT_TIMEOUT, brisk, dead, drain, item, outlast_a_kill, stored, waits_for_room,
};

pub(crate) async fn context(nats: &Nats) -> Context {
    let client = ConnectOptions::new().connection_timeout(WAIT_TIMEOUT).connect(nats.url()).await;
    ContextBuilder::new().timeout(WAIT_TIMEOUT).build(client.unwrap())
}

/// A stream in memory: a busy disk must not delay an acknowledgement beyond the sink's timeout.
pub(crate) async fn stream(context: &Context) -> stream::Stream {
    stream_in(context, stream::StorageType::Memory).await
}

async fn stream_in(context: &Context, storage: stream::StorageType) -> stream::Stream {
    let subjects = vec!["orders".to_owned()];
    let config = stream::Config { name: "orders".into(), subjects, storage, ..Default::default() };
    context.create_stream(config).await.unwrap()
}

async fn all(stream: &mut stream::Stream) -> Vec<jetstream::Message> {
    let messages = stream.info().await.unwrap().state.messages;
    let config = consumer::pull::OrderedConfig::default();
    let consumer = stream.create_consumer(config).await.unwrap();
    let read = consumer.messages().await.unwrap().take(messages as usize);
    read.map(|message| message.unwrap()).collect().await
}

#[tokio::test]
async fn nats_row_sent_twice_is_one_message_of_its_subject() {
    let nats = Nats::start();
    let context = context(&nats).await;
    let mut stream = stream(&context).await;
    let sink = NatsSink::new(&nats.url()).unwrap();
    sink.check().await.unwrap();
    let row = item("{}").key("café").content_type("application/json").header("x", "y");
    let cloudevents = Some(CloudEvents::new("/shop"));
    let message = OutboundMessage::new(row.clone()).cloudevents(cloudevents);
    for _ in 0..3 {
        sink.send(&message).await.unwrap();
    }
    let messages = all(&mut stream).await;
    assert_eq!(messages.len(), 1);
    let headers = messages[0].headers.as_ref().unwrap();
    let get = |name: &str| headers.get(name).map(|value| value.as_str().to_owned());
    assert_eq!(get("Nats-Msg-Id"), Some(row.id.to_string()));
    assert_eq!(get("Hapax-Topic").as_deref(), Some("orders"));
    assert_eq!(get("Hapax-Key").as_deref(), Some("caf%C3%A9"));
    assert_eq!(get("Content-Type").as_deref(), Some("application/json"));
    assert_eq!((get("x").as_deref(), get("ce-source").as_deref()), (Some("y"), Some("/shop")));
    assert_eq!(messages[0].payload, "{}");
}

#[tokio::test]
async fn nats_row_cannot_set_nats_headers() {
    let nats = Nats::start();
    let context = context(&nats).await;
    let mut stream = stream(&context).await;
    let sink = NatsSink::new(&nats.url()).unwrap();
    // The stream would refuse a row with this header, because its last id is another one.
    let row = item("{}").header("Nats-Expected-Last-Msg-Id", "x").header("nats-rollup", "all");
    sink.send(&OutboundMessage::new(row)).await.unwrap();
    let message = all(&mut stream).await.remove(0);
    let headers = message.headers.as_ref().unwrap();
    let names: Vec<_> = headers.iter().map(|(name, _)| name.to_string()).collect();
    let orders = names.iter().filter(|name| name.to_ascii_lowercase().starts_with("nats-"));
    assert_eq!(orders.collect::<Vec<_>>(), ["Nats-Msg-Id"]);
}

#[tokio::test]
async fn nats_subject_without_a_stream_is_the_rows_failure() {
    let nats = Nats::start();
    let context = context(&nats).await;
    let mut stream = stream(&context).await;
    let stray = QueueItem::new(&Default::default(), "elsewhere", "0");
    let store = stored(&[stray, item("1"), item("2")]).await;
    drain(&store, Arc::new(NatsSink::new(&nats.url()).unwrap()), brisk(), 1).await;
    let dead = &dead(&*store).await[0];
    assert!(dead.reason.contains("no JetStream stream covers the subject"), "{}", dead.reason);
    assert_eq!(dead.attempts, 3);
    assert_eq!(all(&mut stream).await.len(), 2);
}

#[tokio::test]
async fn fault_07_full_nats_stream_uses_up_no_attempts() {
    let nats = Nats::start();
    let config = stream::Config {
        name: "orders".into(),
        subjects: vec!["orders".to_owned()],
        storage: stream::StorageType::Memory,
        max_messages: 1,
        discard: stream::DiscardPolicy::New,
        ..Default::default()
    };
    let stream = context(&nats).await.create_stream(config).await.unwrap();
    let sink = NatsSink::new(&nats.url()).unwrap();
    sink.send(&OutboundMessage::new(item("0"))).await.unwrap();
    let store = stored(&[item("1")]).await;
    waits_for_room(store, sink, async || {
        stream.purge().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn nats_server_without_jetstream_fails_the_check() {
    let nats = Nats::without_jetstream();
    let failure = NatsSink::new(&nats.url()).unwrap().check().await.unwrap_err();
    assert!(failure.to_string().contains("no JetStream"), "{failure}");
}

#[tokio::test]
async fn nats_bad_subject_or_size_is_refused_permanently() {
    let nats = Nats::start();
    stream(&context(&nats).await).await;
    let wire = TcpProxy::to(nats.port());
    let sink = NatsSink::new(&format!("nats://127.0.0.1:{}", wire.port())).unwrap();
    let large = vec![0; 2 << 20];
    let small = ["a b", "orders.*", ">", "", "a..b"].map(|topic| (topic, vec![b'x']));
    for (topic, payload) in small.into_iter().chain([("orders", large)]) {
        let item = QueueItem::new(&Default::default(), topic, payload);
        let failure = sink.send(&OutboundMessage::new(item)).await.unwrap_err();
        let DeliveryError::Refused { retry, .. } = failure else { panic!("{failure:?}") };
        assert_eq!(retry, RetryHint::Never, "{topic}");
    }
    sink.send(&OutboundMessage::new(item("good"))).await.unwrap();
    assert_eq!(wire.accepted(), 1, "the connection was not cut by any of them");
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_kill_loses_and_doubles_nothing() {
    let nats = Nats::start();
    stream_in(&context(&nats).await, stream::StorageType::File).await;
    let sink = NatsSink::new(&nats.url()).unwrap();
    outlast_a_kill(sink, || nats.kill(), async || nats.restart()).await;
    let mut stream = context(&nats).await.get_stream("orders").await.unwrap();
    let arrived: Vec<u32> = all(&mut stream)
        .await
        .iter()
        .map(|message| std::str::from_utf8(&message.payload).unwrap().parse().unwrap())
        .collect();
    assert_eq!(arrived.len(), 600, "each row once: the stream knows the id again");
    for key in 0..7 {
        let of_key: Vec<_> = arrived.iter().filter(|n| *n % 7 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
}
