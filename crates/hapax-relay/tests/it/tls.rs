//! Brokers that speak TLS only: `?ca=FILE` names the authority, and another one is refused.

use std::path::Path;

use async_nats::ConnectOptions;
use async_nats::jetstream::context::ContextBuilder;
use hapax_relay::consumer::{MessageSource, NatsSource, RabbitMqSource, RedisStreamSource};
use hapax_relay::sinks::{NatsSink, RabbitMqSink, RedisStreamSink};
use hapax_relay::{OutboundMessage, Sink};
use hapax_testkit::{Certificates, Nats, RabbitMq, Redis};
use lapin::DefaultConnectionBuilder;
use lapin::tcp::OwnedTLSConfig;

use crate::support::{WAIT_TIMEOUT, item};
use crate::{amqp, nats};

fn with_ca(url: &str, ca: &Path) -> String {
    format!("{url}?ca={}", ca.display())
}

/// Sends a row, and receives it by a consumer.
async fn delivers(sink: &dyn Sink, source: &dyn MessageSource) {
    let row = item("{}");
    sink.check().await.unwrap();
    sink.send(&OutboundMessage::new(row.clone())).await.unwrap();
    let received = async {
        loop {
            if let Some(delivery) = source.receive(1).await.unwrap().pop() {
                return delivery.message().id.clone();
            }
        }
    };
    let id = tokio::time::timeout(WAIT_TIMEOUT, received).await.unwrap();
    assert_eq!(id, row.id.to_string());
}

/// Neither with the system's authorities nor with another one, and the reason names the setting.
async fn refuses_strangers<S: Sink, M: MessageSource>(
    url: &str,
    sink: impl Fn(&str) -> S,
    source: impl Fn(&str) -> M,
) {
    let folder = tempfile::tempdir().unwrap();
    let stranger = Certificates::make_in(folder.path()).authority;
    for url in [url.to_owned(), with_ca(url, &stranger)] {
        let reason = sink(&url).check().await.unwrap_err().to_string();
        assert!(reason.contains("not trusted") && reason.contains("ca=FILE"), "{reason}");
        let Err(error) = source(&url).receive(1).await else { panic!("it received") };
        assert!(error.to_string().contains("ca=FILE"), "{error}");
    }
}

#[tokio::test]
async fn tls_nats_needs_the_ca_and_delivers() {
    let nats = Nats::tls();
    let url = with_ca(&nats.url(), nats.ca_path());
    let options = ConnectOptions::new().connection_timeout(WAIT_TIMEOUT);
    let options = options.add_root_certificates(nats.ca_path().to_owned());
    let client = options.connect(nats.url()).await.unwrap();
    nats::stream(&ContextBuilder::new().timeout(WAIT_TIMEOUT).build(client)).await;
    let sink = |url: &str| NatsSink::new(url).unwrap();
    let source = |url: &str| NatsSource::new(url, "orders", "billing").unwrap();
    delivers(&sink(&url), &source(&url)).await;
    refuses_strangers(&nats.url(), sink, source).await;
    // The server asks for TLS also where the URL does not.
    sink(&url.replacen("tls:", "nats:", 1)).check().await.unwrap();
    assert!(NatsSink::new("tls://a:1?ca=/no/such/file").is_err());
}

#[tokio::test]
async fn tls_nats_with_a_ca_refuses_a_server_without_tls() {
    let (plain, other) = (Nats::start(), Nats::tls());
    let answer = NatsSink::new(&with_ca(&plain.url(), other.ca_path())).unwrap().check().await;
    assert!(answer.is_err(), "it went on without TLS");
}

#[tokio::test]
async fn tls_rabbitmq_needs_the_ca_and_delivers() {
    let rabbit = RabbitMq::tls();
    let url = with_ca(&rabbit.url(), rabbit.ca_path());
    let cert_chain = Some(std::fs::read_to_string(rabbit.ca_path()).unwrap());
    let trust = OwnedTLSConfig { identity: None, cert_chain };
    let builder = DefaultConnectionBuilder::new().unwrap().with_uri_str(rabbit.url());
    let connection = builder.with_tls_config(trust).connect().await.unwrap();
    amqp::declare(&connection.create_channel().await.unwrap(), "orders").await;
    let sink = |url: &str| RabbitMqSink::new(url).unwrap();
    let source = |url: &str| RabbitMqSource::new(url, "orders").unwrap();
    delivers(&sink(&url), &source(&url)).await;
    refuses_strangers(&rabbit.url(), sink, source).await;
    let plain = url.replacen("amqps:", "amqp:", 1);
    let Err(refused) = RabbitMqSink::new(&plain) else { panic!("`ca` without TLS") };
    assert!(refused.to_string().contains("amqps://"), "{refused}");
}

#[tokio::test]
async fn tls_redis_stream_needs_the_ca_and_delivers() {
    let redis = Redis::tls();
    let url = with_ca(&redis.url(), redis.ca_path());
    let sink = |url: &str| RedisStreamSink::new(url).unwrap();
    let source = |url: &str| RedisStreamSource::new(url, "orders", "billing", "one").unwrap();
    delivers(&sink(&url), &source(&url)).await;
    refuses_strangers(&redis.url(), sink, source).await;
    assert!(RedisStreamSink::new(&url.replacen("rediss:", "redis:", 1)).is_err());
}
