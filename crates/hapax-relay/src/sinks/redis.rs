//! Redis Streams as a sink.

use async_trait::async_trait;
use redis::{Cmd, cmd};
use serde::Serializer;

use super::EndpointConfigError;
use crate::redis_connection::RedisLink;
use crate::{DeliveryError, OutboundMessage, Sink};

/// Appends rows to Redis Streams. The stream is named by the topic; the fields are `id`, `key`,
/// `payload`, `content_type` and `headers` (JSON).
pub struct RedisStreamSink(RedisLink);

impl RedisStreamSink {
    /// Streams on this server, at `redis://…` or `rediss://…`.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        RedisLink::new(url).map(Self)
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
        self.0.query(&add).await
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        self.0.reconnect().await?;
        self.0.query(&cmd("PING")).await
    }
}
