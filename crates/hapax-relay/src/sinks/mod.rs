//! The sinks that come with hapax.

#[cfg(feature = "amqp")]
mod amqp;
mod bus;
mod lines;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "webhook")]
mod webhook;

#[cfg(feature = "amqp")]
pub use amqp::RabbitMq;
pub use bus::Jobs;
pub use lines::Lines;
#[cfg(feature = "nats")]
pub use nats::Nats;
#[cfg(feature = "redis")]
pub use redis::RedisStreams;
#[cfg(feature = "webhook")]
pub use webhook::{Webhook, WebhookSettings};

/// Why a sink cannot be made. Says what was expected, and never repeats a URL: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

impl Unusable {
    #[cfg(any(feature = "amqp", feature = "nats", feature = "redis", feature = "webhook"))]
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}
