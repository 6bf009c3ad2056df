//! Consumers on the real brokers: each message takes effect once, and poison becomes a dead letter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::inbox::Inbox;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueItem;
use hapax_relay::consumer::{
    BrokerConsumer, ConsumerConfig, InboundMessage, MessageHandler, MessageHandlerError,
    MessageSource, NatsSource, RabbitMqSource, RedisStreamSource,
};
use hapax_relay::sinks::{NatsSink, RedisStreamSink};
use hapax_relay::{Backoff, OutboundMessage, Sink};
use hapax_testkit::{Nats, Redis};
use tokio::sync::mpsc;

use crate::support::{WAIT_TIMEOUT, Working, until};
use crate::{amqp, nats};

/// Redis writes no append-only file: a busy disk could delay an answer until a client retries.
const IN_MEMORY: &[&str] = &["--appendonly", "no"];

/// Counts its attempts and effects for each payload. `fails` fails twice, `poison` and `broken`
/// always, and `panics` panics the first time.
#[derive(Clone, Default)]
struct Work(Arc<Mutex<Done>>);

#[derive(Default)]
struct Done {
    tries: HashMap<String, u32>,
    effects: HashMap<String, u32>,
    seen: Vec<InboundMessage>,
}

#[async_trait]
impl MessageHandler for Work {
    async fn handle(&self, message: &InboundMessage) -> Result<(), MessageHandlerError> {
        let payload = String::from_utf8(message.payload.to_vec()).unwrap();
        let tries = {
            let mut done = self.0.lock().unwrap();
            done.seen.push(message.clone());
            let tries = done.tries.entry(payload.clone()).or_default();
            *tries += 1;
            *tries
        };
        match payload.as_str() {
            "fails" if tries < 3 => return Err(MessageHandlerError::Transient("not yet".into())),
            "poison" => return Err(MessageHandlerError::Transient("it never works".into())),
            "broken" => return Err(MessageHandlerError::Poison("no JSON".into())),
            "panics" if tries == 1 => panic!("as the test wants"),
            _ => {}
        }
        *self.0.lock().unwrap().effects.entry(payload).or_default() += 1;
        Ok(())
    }
}

impl Work {
    fn effects(&self) -> HashMap<String, u32> {
        self.0.lock().unwrap().effects.clone()
    }

    fn tries(&self, payload: &str) -> u32 {
        self.0.lock().unwrap().tries.get(payload).copied().unwrap_or(0)
    }
}

fn config() -> ConsumerConfig {
    let backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(20));
    ConsumerConfig::new().max_attempts(4).backoff(backoff)
}

fn row(topic: &str, payload: &str) -> OutboundMessage {
    OutboundMessage::new(QueueItem::new(&Default::default(), topic, payload.to_owned()).key("k"))
}

/// Sends good, failing and poisonous messages, each twice, and runs two consumers until the
/// poisonous messages are dead letters.
async fn each_effect_once(
    sink: &dyn Sink,
    topic: &str,
    sources: [impl MessageSource; 2],
    poison_is_dead: impl AsyncFnMut() -> bool,
) {
    let work = Work::default();
    let inbox = Inbox::new(Arc::new(MemoryStore::default()));
    let names = ["good", "fails", "poison", "broken", "panics", "last"];
    let consumers = sources.map(|source| {
        let consumer = BrokerConsumer::new("billing", source, work.clone());
        let consumer = consumer.inbox(inbox.clone()).config(config());
        Working::run(|stop| consumer.run(stop))
    });
    for name in names {
        let message = row(topic, name);
        sink.send(&message).await.unwrap();
        // A redelivery, as after a lost acknowledgement; NATS itself drops it.
        sink.send(&message).await.unwrap();
    }
    let good = ["good", "fails", "panics", "last"];
    until("all effects", async || work.effects().len() == good.len()).await;
    until("poison was tried", async || work.tries("poison") >= 4).await;
    until("what is broken was tried", async || work.tries("broken") >= 1).await;
    until("poison is dead", poison_is_dead).await;
    for consumer in consumers {
        consumer.stop().await;
    }
    for name in good {
        assert_eq!(work.effects()[name], 1, "{name}");
    }
    let done = work.0.lock().unwrap();
    let seen = done.seen.iter().find(|seen| seen.payload == "good").unwrap();
    assert_eq!((seen.topic.as_str(), seen.key.as_deref()), (topic, Some("k")));
    assert!(seen.fence.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn from_nats_each_message_has_its_effect_once() {
    let server = Nats::start();
    let context = nats::context(&server).await;
    nats::stream(&context).await;
    let sink = NatsSink::new(&server.url()).unwrap();
    let sources = [(); 2].map(|()| NatsSource::new(&server.url(), "orders", "billing").unwrap());
    let dead = async || match context.get_stream("orders_dead").await {
        Ok(stream) => stream.cached_info().state.messages,
        Err(_) => 0,
    };
    each_effect_once(&sink, "orders", sources, async || dead().await == 2).await;
    let stream = context.get_stream("orders_dead").await.unwrap();
    let first = stream.get_raw_message(1).await.unwrap();
    let reason = first.headers.get("Hapax-Dead-Reason").unwrap().as_str().to_owned();
    assert!(["it never works", "no JSON"].contains(&&*reason), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn from_rabbitmq_each_message_has_its_effect_once() {
    let (_connection, channel, sink) = amqp::queue("consumed").await;
    // The queue of the dead letters, which the first consumer would otherwise create.
    amqp::declare(&channel, "consumed.dead").await;
    let sources = [(); 2].map(|()| RabbitMqSource::new(&amqp::SHARED.url(), "consumed").unwrap());
    let mut dead = Vec::new();
    each_effect_once(&*sink, "consumed", sources, async || {
        dead.extend(amqp::all(&channel, "consumed.dead").await);
        dead.len() >= 2
    })
    .await;
    let headers = dead[0].delivery.properties.headers().as_ref().unwrap();
    assert!(headers.inner().contains_key("hapax-dead-reason"));
}

fn stream_source(redis: &Redis, consumer: &str) -> RedisStreamSource {
    RedisStreamSource::new(&redis.url(), "orders", "billing", consumer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn from_a_redis_stream_each_message_has_its_effect_once() {
    let redis = Redis::with(IN_MEMORY);
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    let sources = ["c1", "c2"].map(|consumer| stream_source(&redis, consumer));
    each_effect_once(&sink, "orders", sources, async || {
        let dead = redis.cli(&["XRANGE", "orders:dead", "-", "+"]);
        dead.contains("it never works") && dead.contains("no JSON")
    })
    .await;
}

/// A consumer that is running, with the number of its effects.
fn consuming(source: impl MessageSource) -> (Work, Working) {
    let work = Work::default();
    let consumer = BrokerConsumer::new("billing", source, work.clone()).config(config());
    (work, Working::run(|stop| consumer.run(stop)))
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_redis_consumer_makes_a_lost_group_again() {
    let redis = Redis::with(IN_MEMORY);
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    let (work, running) = consuming(stream_source(&redis, "one"));
    let losses: [&[&str]; 3] =
        [&["FLUSHALL"], &["DEL", "orders"], &["XGROUP", "DESTROY", "orders", "billing"]];
    for (n, loss) in losses.into_iter().enumerate() {
        for when in ["before", "after"] {
            let payload = format!("{when} {n}");
            sink.send(&row("orders", &payload)).await.unwrap();
            until(&payload, async || work.effects().contains_key(&payload)).await;
            if when == "before" {
                redis.cli(loss);
            }
        }
    }
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_nats_consumer_makes_a_lost_durable_again() {
    let server = Nats::start();
    let context = nats::context(&server).await;
    let stream = nats::stream(&context).await;
    let sink = NatsSink::new(&server.url()).unwrap();
    let source = NatsSource::new(&server.url(), "orders", "billing").unwrap();
    let (work, running) = consuming(source);
    let sent = async |payload: &str| {
        sink.send(&row("orders", payload)).await.unwrap();
        until(payload, async || work.effects().contains_key(payload)).await;
    };
    sent("first").await;
    stream.delete_consumer("billing").await.unwrap();
    sent("after the durable was deleted").await;
    context.delete_stream("orders").await.unwrap();
    nats::stream(&context).await;
    sent("after the stream was deleted").await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_trimmed_pending_entry_is_acknowledged_and_not_handled() {
    let redis = Redis::with(IN_MEMORY);
    redis.cli(&["XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM"]);
    let id = redis.cli(&["XADD", "orders", "*", "payload", "trimmed"]);
    redis.cli(&["XREADGROUP", "GROUP", "billing", "one", "STREAMS", "orders", ">"]);
    assert_eq!(redis.cli(&["XDEL", "orders", id.trim()]), "1");
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    sink.send(&row("orders", "good")).await.unwrap();
    let (work, running) = consuming(stream_source(&redis, "one"));
    until("the good one", async || work.effects().contains_key("good")).await;
    let pending = || redis.cli(&["XPENDING", "orders", "billing"]);
    until("nothing is pending", async || pending().lines().next() == Some("0")).await;
    running.stop().await;
    assert_eq!(work.effects().len(), 1, "a handler got an entry that does not exist");
}

/// Sends the test a new item for each message.
struct Forwards(mpsc::UnboundedSender<QueueItem>);

#[async_trait]
impl MessageHandler for Forwards {
    async fn handle(&self, _: &InboundMessage) -> Result<(), MessageHandlerError> {
        self.0.send(QueueItem::new(&Default::default(), "next", "{}")).unwrap();
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn handler_runs_in_the_trace_of_its_message() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let redis = Redis::with(IN_MEMORY);
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let inbox = Inbox::new(Arc::new(MemoryStore::default()));
    let consumer = BrokerConsumer::new("billing", stream_source(&redis, "one"), Forwards(tell));
    let running = Working::run(|stop| consumer.inbox(inbox).run(stop));
    for (name, value, kept) in [
        ("traceparent", TRACE, Some(TRACE)),
        ("Traceparent", TRACE, Some(TRACE)),
        ("traceparent", "00-1-2-01", None),
        ("other", TRACE, None),
    ] {
        let item = QueueItem::new(&Default::default(), "orders", "{}").header(name, value);
        sink.send(&OutboundMessage::new(item)).await.unwrap();
        let next = tokio::time::timeout(WAIT_TIMEOUT, told.recv()).await.unwrap().unwrap();
        assert_eq!(next.headers.get("traceparent").map(String::as_str), kept, "{name}: {value}");
    }
    running.stop().await;
}

/// A handler with the inbox in its own transaction: the consumer only delivers.
#[tokio::test(flavor = "multi_thread")]
async fn consumer_without_inbox_passes_the_id_and_retries() {
    let redis = Redis::with(IN_MEMORY);
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    for name in ["fails", "good"] {
        sink.send(&row("orders", name)).await.unwrap();
    }
    let work = Work::default();
    let consumer = BrokerConsumer::new("billing", stream_source(&redis, "one"), work.clone());
    let running = Working::run(|stop| consumer.config(config()).run(stop));
    until("both", async || work.effects().len() == 2).await;
    let pending = || redis.cli(&["XPENDING", "orders", "billing"]);
    until("both are acknowledged", async || pending().lines().next() == Some("0")).await;
    running.stop().await;
    let done = work.0.lock().unwrap();
    let failed = done.seen.iter().filter(|message| message.payload == "fails");
    let attempts: Vec<_> = failed.map(|message| (message.attempt, message.id.len())).collect();
    assert_eq!(attempts, [(1, 36), (2, 36), (3, 36)]);
}
