//! Redis Streams as a sink.

use async_trait::async_trait;
use redis::{Client, Cmd, RedisError, cmd};
use serde::Serializer;

use super::EndpointConfigError;
use crate::redis_connection::{self, RedisSinkConnection};
use crate::shared_connection::SinkConnection;
use crate::{DeliveryError, OutboundMessage, Sink};

/// Error codes that concern the server, not the message.
const SERVER_ERRORS: &[&str] = &[
    "OOM",
    "MISCONF",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "BUSY",
    "TRYAGAIN",
    "NOAUTH",
    "WRONGPASS",
];

/// Appends rows to Redis Streams. The stream is named by the topic; the fields are `id`, `key`,
/// `payload`, `content_type` and `headers` (JSON).
pub struct RedisStreamSink {
    client: Client,
    link: SinkConnection<RedisSinkConnection>,
}

impl RedisStreamSink {
    /// Streams on this server, at `redis://…` or `rediss://…`.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        Ok(Self { client: redis_connection::client(url)?, link: SinkConnection::new() })
    }

    async fn connect(&self) -> Result<RedisSinkConnection, DeliveryError> {
        let connected = redis_connection::connect(&self.client).await;
        connected.map_err(|error| DeliveryError::unreachable(describe("connect", &error)))
    }
}

#[async_trait]
impl Sink for RedisStreamSink {
    fn name(&self) -> &'static str {
        "redis"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let item = &message.item;
        let mut headers = Vec::with_capacity(128);
        serde_json::Serializer::new(&mut headers)
            .collect_map(message.headers("ce-")?)
            .map_err(|_| DeliveryError::refused("the headers are no JSON").permanent())?;
        let mut add = Cmd::with_capacity(13, item.payload.len() + headers.len() + 256);
        add.arg("XADD").arg(&*item.topic).arg("*");
        add.arg("id").arg(message.id());
        add.arg("key").arg(item.key.as_deref().unwrap_or_default());
        add.arg("payload").arg(&item.payload[..]);
        add.arg("content_type").arg(item.content_type.as_deref().unwrap_or_default());
        add.arg("headers").arg(&headers[..]);
        // Boxed: connecting is rare, and its large future would be part of every message's future.
        let (number, mut open) = self.link.get_or_connect(|| Box::pin(self.connect())).await?;
        match add.query_async::<()>(&mut open.connection).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.delivery_error(number, &error).await),
        }
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        let (number, mut open) = self.link.reconnect(|| self.connect()).await?;
        match cmd("PING").query_async::<()>(&mut open.connection).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.link.discard(number).await;
                Err(DeliveryError::unreachable(describe("answer", &error)))
            }
        }
    }
}

impl RedisStreamSink {
    async fn delivery_error(&self, number: u64, error: &RedisError) -> DeliveryError {
        match error.code() {
            Some(code) if SERVER_ERRORS.contains(&code) => {
                DeliveryError::unreachable(format!("Redis takes nothing now ({code})"))
            }
            Some(code) => DeliveryError::refused(format!("Redis refused it ({code})")),
            None => {
                self.link.discard(number).await;
                DeliveryError::disconnected(describe("answer", error))
            }
        }
    }
}

/// Describes an error by its category, because the driver's full text may name the server's
/// address.
fn describe(what: &str, error: &RedisError) -> String {
    format!("Redis did not {what}: {}", error.category())
}
