//! Redis Streams as a sink.

use std::time::Duration;

use async_trait::async_trait;
use hapax_core::{Clock, SystemClock, millis};
use redis::{Cmd, cmd};
use serde::Serializer;

use super::EndpointConfigError;
use crate::redis_connection::RedisLink;
use crate::{DeliveryError, OutboundMessage, Sink};

/// Appends rows to Redis Streams. The stream is named by the topic; the fields are `id`, `key`,
/// `payload`, `content_type` and `headers` (JSON). Streams grow without a bound unless
/// [`RedisStreamSink::trim`] sets one: Redis keeps entries that every consumer has acknowledged.
pub struct RedisStreamSink {
    link: RedisLink,
    trim: Option<StreamTrim>,
}

/// How many entries a stream keeps. An entry that no consumer has read yet is lost if it is trimmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamTrim {
    /// At least so many entries, and about a hundred more.
    MaxEntries(u64),
    /// Entries of this age, by the relay's clock, and some that are older.
    MaxAge(Duration),
}

impl RedisStreamSink {
    /// Streams on this server, at `redis://…` or `rediss://…`.
    ///
    /// # Errors
    /// If the URL is malformed.
    pub fn new(url: &str) -> Result<Self, EndpointConfigError> {
        Ok(Self { link: RedisLink::new(url)?, trim: None })
    }

    /// Trims each stream when an entry is added to it; never by default.
    #[must_use]
    pub fn trim(mut self, trim: impl Into<Option<StreamTrim>>) -> Self {
        self.trim = trim.into();
        self
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
        let mut add = Cmd::with_capacity(16, item.payload.len() + headers.len() + 256);
        add.arg("XADD").arg(&*item.topic);
        // `~` trims whole nodes of the stream, which costs next to nothing.
        match self.trim {
            Some(StreamTrim::MaxEntries(entries)) => {
                add.arg("MAXLEN").arg("~").arg(entries);
            }
            Some(StreamTrim::MaxAge(age)) => {
                let oldest = SystemClock.now().0.saturating_sub(millis(age));
                add.arg("MINID").arg("~").arg(oldest);
            }
            None => {}
        }
        add.arg("*");
        add.arg("id").arg(message.id());
        add.arg("key").arg(item.key.as_deref().unwrap_or_default());
        add.arg("payload").arg(&item.payload[..]);
        add.arg("content_type").arg(item.content_type.as_deref().unwrap_or_default());
        add.arg("headers").arg(&headers[..]);
        self.link.query(&add).await
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        self.link.reconnect().await?;
        self.link.query(&cmd("PING")).await
    }
}
