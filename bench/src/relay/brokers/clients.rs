//! The brokers, each with its own client.

use std::sync::Arc;

use async_nats::jetstream::{self, stream};
use async_trait::async_trait;
use axum::body::Bytes;
use hapax_relay::sinks::{NatsSink, RabbitMqSink, RedisStreamSink, WebhookConfig, WebhookSink};
use hapax_testkit::{Nats, RabbitMq, Redis};
use hapax_workload::{BenchError, BenchOperation, ProcessGroup};
use http_body_util::{BodyExt, Full};
use hyper::{Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueuePurgeOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties};
use redis::aio::MultiplexedConnection;
use redis::cmd;

use super::{Broker, BrokerClient, BrokerKind};
use crate::raw::engine;
use crate::raw::redis::connect;
use crate::relay::rows::{TOPIC, message};

impl Broker {
    pub(super) async fn start(kind: BrokerKind) -> anyhow::Result<Self> {
        let group = |pid: Option<i32>| ProcessGroup::new(pid.map(i32::cast_unsigned));
        Ok(match kind {
            BrokerKind::Nats => {
                let server = Nats::start();
                Self {
                    name: "NATS",
                    processes: group(server.pid()),
                    sink: Arc::new(NatsSink::new(&server.url())?),
                    client: Arc::new(NatsClient::connect(&server.url()).await?),
                    _server: Box::new(server),
                }
            }
            BrokerKind::RabbitMq => {
                let server = RabbitMq::start();
                Self {
                    name: "RabbitMQ",
                    processes: group(server.pid()),
                    sink: Arc::new(RabbitMqSink::new(&server.url())?),
                    client: Arc::new(RabbitMqClient::connect(&server.url()).await?),
                    _server: Box::new(server),
                }
            }
            BrokerKind::Redis => {
                let server = Redis::with(&["--appendonly", "no"]);
                Self {
                    name: "Redis",
                    processes: group(server.pid()),
                    sink: Arc::new(RedisStreamSink::new(&server.url())?),
                    client: Arc::new(RedisClient(connect(&server.url()).await?)),
                    _server: Box::new(server),
                }
            }
            BrokerKind::Http => {
                let server = crate::http::handler(None)?;
                let url = format!("http://{}/orders", server.address());
                let config = WebhookConfig::new().allow_private(true);
                Self {
                    name: "HTTP",
                    processes: server.processes(),
                    sink: Arc::new(WebhookSink::new(&url, &config)?),
                    client: Arc::new(HttpClient::new(&url)?),
                    _server: Box::new(server),
                }
            }
        })
    }
}

/// NATS JetStream, a stream in a file.
pub(in crate::relay) struct NatsClient {
    context: jetstream::Context,
    stream: stream::Stream,
}

impl NatsClient {
    /// Opens the stream, and creates it the first time.
    pub(in crate::relay) async fn connect(url: &str) -> anyhow::Result<Self> {
        let context = jetstream::new(async_nats::connect(url).await?);
        let subjects = vec![TOPIC.to_owned()];
        let config = stream::Config { name: TOPIC.into(), subjects, ..Default::default() };
        let stream = context.get_or_create_stream(config).await?;
        Ok(Self { context, stream })
    }
}

#[async_trait]
impl BenchOperation for NatsClient {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let mut headers = async_nats::HeaderMap::new();
        headers.insert(async_nats::header::NATS_MESSAGE_ID, item.id.to_string());
        let published = self.context.publish_with_headers(TOPIC, headers, item.payload).await;
        published.map_err(engine)?.await.map_err(engine)?;
        Ok(())
    }
}

#[async_trait]
impl BrokerClient for NatsClient {
    async fn clear(&self) -> anyhow::Result<()> {
        self.stream.purge().await?;
        Ok(())
    }
}

/// RabbitMQ with a durable queue, over one channel, as the client's documentation says.
struct RabbitMqClient {
    channel: Channel,
    _connection: Connection,
}

impl RabbitMqClient {
    async fn connect(url: &str) -> anyhow::Result<Self> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(TOPIC.into(), durable, FieldTable::default()).await?;
        Ok(Self { channel, _connection: connection })
    }
}

#[async_trait]
impl BenchOperation for RabbitMqClient {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let properties = BasicProperties::default()
            .with_message_id(item.id.to_string().into())
            .with_delivery_mode(2)
            .with_content_type("application/json".into());
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let publish =
            self.channel.basic_publish("".into(), TOPIC.into(), options, &item.payload, properties);
        match publish.await.map_err(engine)?.await.map_err(engine)? {
            Confirmation::Ack(None) => Ok(()),
            _ => Err(BenchError::Unexpected("a message was not confirmed")),
        }
    }
}

#[async_trait]
impl BrokerClient for RabbitMqClient {
    async fn clear(&self) -> anyhow::Result<()> {
        self.channel.queue_purge(TOPIC.into(), QueuePurgeOptions::default()).await?;
        Ok(())
    }
}

/// Redis Streams over one multiplexed connection.
struct RedisClient(MultiplexedConnection);

#[async_trait]
impl BenchOperation for RedisClient {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let mut add = cmd("XADD");
        add.arg(TOPIC).arg("*").arg("id").arg(item.id.to_string());
        add.arg("payload").arg(&item.payload[..]).arg("content_type").arg("application/json");
        add.query_async::<()>(&mut self.0.clone()).await.map_err(engine)
    }
}

#[async_trait]
impl BrokerClient for RedisClient {
    async fn clear(&self) -> anyhow::Result<()> {
        Ok(cmd("DEL").arg(TOPIC).query_async(&mut self.0.clone()).await?)
    }
}

/// A webhook: axum in a process of its own, which answers and does nothing.
struct HttpClient {
    client: Client<HttpConnector, Full<Bytes>>,
    uri: Uri,
}

impl HttpClient {
    fn new(url: &str) -> anyhow::Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, uri: url.parse()? })
    }
}

#[async_trait]
impl BenchOperation for HttpClient {
    async fn run(&self, task: usize, _turn: u64) -> Result<(), BenchError> {
        let item = message(task);
        let request = Request::post(self.uri.clone())
            .header("content-type", "application/json")
            .header("idempotency-key", item.id.to_string())
            .body(Full::new(item.payload))
            .map_err(engine)?;
        let answer = self.client.request(request).await.map_err(engine)?;
        let taken = answer.status().is_success();
        // Read the body to its end, so that the connection can be used again.
        answer.into_body().collect().await.map_err(engine)?;
        if taken { Ok(()) } else { Err(BenchError::Unexpected("the webhook refuses a message")) }
    }
}

impl BrokerClient for HttpClient {}
