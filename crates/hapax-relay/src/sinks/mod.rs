//! The sinks that come with hapax.

#[cfg(feature = "amqp")]
pub(crate) mod amqp;
mod bus;
mod lines;
#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "amqp")]
pub use amqp::RabbitMqSink;
pub(crate) use bus::BUS;
pub use bus::BusSink;
pub use lines::JsonLinesSink;
#[cfg(feature = "nats")]
pub use nats::NatsSink;
#[cfg(feature = "redis")]
pub use redis::{RedisStreamSink, StreamTrim};
#[cfg(feature = "webhook")]
pub use webhook::{WebhookConfig, WebhookSink};

/// Why a sink or source cannot be created. The message names what is expected and never repeats a
/// URL, which may contain a password; for the same reason no source error is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EndpointConfigError(String);

impl EndpointConfigError {
    #[cfg(any(feature = "amqp", feature = "nats", feature = "redis", feature = "webhook"))]
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
