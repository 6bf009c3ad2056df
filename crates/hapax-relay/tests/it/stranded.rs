//! Connections that carry nothing any more but do not end either: a firewall has dropped them
//! silently, while the broker still runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Tenant;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::QueueItem;
use hapax_relay::consumer::{
    BrokerConsumer, InboundMessage, MessageHandler, MessageHandlerError, MessageSource, NatsSource,
    RedisStreamSource,
};
use hapax_relay::sinks::{NatsSink, RabbitMqSink, RedisStreamSink};
use hapax_relay::{OutboundMessage, Sink};
use hapax_testkit::{Nats, Redis, TcpProxy};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::{WAIT_TIMEOUT, Working, brisk, drained, enqueue, item};
use crate::{amqp, nats};

/// Shorter than the time after which the drivers' heartbeats and pings would notice (90 s and
/// more). No driver notices it for a consumer that waits for an answer.
const SOON: Duration = Duration::from_secs(80);

async fn rows_go_on(sink: impl Sink + 'static, topic: &str, wire: &TcpProxy) {
    let row =
        |payload: &str| QueueItem::new(&Tenant::default(), topic, payload.to_owned()).key("k");
    let store = Arc::new(MemoryStore::default());
    // However long a machine stalls, no row may become a dead letter, which would block its key.
    let settings = brisk().send_timeout(Duration::from_secs(2)).max_attempts(u32::MAX);
    let relay = Working::start(store.clone(), Arc::new(sink), settings);
    enqueue(&*store, &[row("before")]).await;
    drained(&*store).await;
    wire.black_hole();
    enqueue(&*store, &[row("after"), row("last")]).await;
    timeout(SOON, drained(&*store)).await.expect("the relay connects anew");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_gets_to_redis_over_another_connection() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let url = format!("redis://127.0.0.1:{}", wire.port());
    rows_go_on(RedisStreamSink::new(&url).unwrap(), "orders", &wire).await;
    let entries = redis.cli(&["XRANGE", "orders", "-", "+"]);
    assert!(["before", "after", "last"].iter().all(|row| entries.contains(row)), "{entries}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_gets_to_nats_over_another_connection() {
    let nats = Nats::start();
    let mut stream = nats::stream(&nats::context(&nats).await).await;
    let wire = TcpProxy::to(nats.port());
    let url = format!("nats://127.0.0.1:{}", wire.port());
    rows_go_on(NatsSink::new(&url).unwrap(), "orders", &wire).await;
    assert_eq!(stream.info().await.unwrap().state.messages, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_gets_to_rabbitmq_over_another_connection() {
    let (_connection, channel, _) = amqp::queue("amqp.stranded").await;
    let wire = TcpProxy::to(amqp::SHARED.port());
    let url = format!("amqp://guest:guest@127.0.0.1:{}/%2f", wire.port());
    rows_go_on(RabbitMqSink::new(&url).unwrap(), "amqp.stranded", &wire).await;
    assert!(amqp::all(&channel, "amqp.stranded").await.len() >= 3);
}

/// Sends payloads to the test.
struct Tell(mpsc::UnboundedSender<String>);

#[async_trait]
impl MessageHandler for Tell {
    async fn handle(&self, message: &InboundMessage) -> Result<(), MessageHandlerError> {
        let _ = self.0.send(String::from_utf8(message.payload.to_vec()).unwrap());
        Ok(())
    }
}

async fn messages_go_on(sink: impl Sink, source: impl MessageSource, wire: &TcpProxy) {
    let (tell, mut told) = mpsc::unbounded_channel();
    let consumer =
        tokio::spawn(BrokerConsumer::new("c", source, Tell(tell)).run(std::future::pending()));
    let mut hear = async |payload: &str| {
        sink.send(&OutboundMessage::new(item(payload))).await.unwrap();
        let heard = async { while told.recv().await.unwrap() != payload {} };
        timeout(WAIT_TIMEOUT, heard).await.expect("it is delivered");
    };
    hear("before").await;
    wire.black_hole();
    hear("after").await;
    consumer.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_hears_from_redis_over_another_connection() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let url = format!("redis://127.0.0.1:{}", wire.port());
    let source = RedisStreamSource::new(&url, "orders", "billing", "one").unwrap();
    messages_go_on(RedisStreamSink::new(&redis.url()).unwrap(), source, &wire).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_hears_from_nats_over_another_connection() {
    let nats = Nats::start();
    nats::stream(&nats::context(&nats).await).await;
    let wire = TcpProxy::to(nats.port());
    let url = format!("nats://127.0.0.1:{}", wire.port());
    let source = NatsSource::new(&url, "orders", "billing").unwrap();
    messages_go_on(NatsSink::new(&nats.url()).unwrap(), source, &wire).await;
}
