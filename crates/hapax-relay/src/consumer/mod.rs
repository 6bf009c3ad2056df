//! The receiving side: consumes messages that a relay sent, so that each takes effect once.
//!
//! ```text
//!   broker ──► receive ──► inbox: seen before? ──► your handler ──► settle / commit ──► acknowledge
//!                             │ yes: acknowledge       │ fails
//!                             ▼                        ▼
//!                                              again later, with backoff; after the last attempt,
//!                                              or at once where it is poison: the dead letters
//! ```
//!
//! There are two ways to take effect once:
//!
//! - **In your own SQL transaction**: use a consumer without an inbox. The handler inserts
//!   [`InboundMessage::id`] into the inbox of the store's crate within its transaction, does its
//!   work there and commits; a second delivery finds the id and changes nothing. This is exactly
//!   once.
//! - **Elsewhere**: [`BrokerConsumer::inbox`] claims the message before the handler runs and
//!   settles it afterwards. A crash in between runs the handler again (at least once), so pass
//!   [`InboundMessage::fence`] or the id to a system that can refuse a second effect.

#[cfg(feature = "amqp")]
mod amqp;
mod handling;
mod message;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::inbox::Inbox;
use hapax_core::metric_names;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{Backoff, DeliveryError};
#[cfg(feature = "amqp")]
pub use amqp::RabbitMqSource;
pub use message::InboundMessage;
#[cfg(feature = "nats")]
pub use nats::NatsSource;
#[cfg(feature = "redis")]
pub use redis::RedisStreamSource;

/// Handles messages.
#[async_trait]
pub trait MessageHandler: Send + Sync + 'static {
    /// Handles one message. May be called again for the same message (with the same id), even at
    /// the same time by another process. Runs in the message's [trace](hapax_core::trace).
    async fn handle(&self, message: &InboundMessage) -> Result<(), MessageHandlerError>;
}

/// Why a message could not be handled. The reason is stored with the dead letter and must contain
/// no personal data.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageHandlerError {
    /// A retry may succeed.
    #[error("{0}")]
    Transient(String),
    /// A retry cannot succeed: the message becomes a dead letter at once.
    #[error("{0}")]
    Poison(String),
}

/// A source of messages: one queue or stream of a broker.
#[async_trait]
pub trait MessageSource: Send + Sync + 'static {
    /// A short word for logs and metric labels.
    fn name(&self) -> &'static str;

    /// Receives up to `at_most` messages, or none if none arrives for a while. Connects if needed.
    async fn receive(&self, at_most: usize) -> Result<Deliveries, DeliveryError>;
}

/// Received messages.
pub type Deliveries = Vec<Box<dyn MessageDelivery>>;

/// One delivery of a message. If it is dropped, the broker delivers the message again.
#[async_trait]
pub trait MessageDelivery: Send + Sync {
    /// The message.
    fn message(&self) -> &InboundMessage;

    /// Acknowledges the message.
    async fn ack(&self) -> Result<(), DeliveryError>;

    /// Has the broker deliver the message again after this time.
    async fn retry_after(&self, after: Duration) -> Result<(), DeliveryError>;

    /// Moves the message to the dead letters.
    async fn bury(&self, reason: &str) -> Result<(), DeliveryError>;

    /// Tells the broker that the message is still being handled.
    async fn keep_alive(&self) -> Result<(), DeliveryError>;

    /// How often [`MessageDelivery::keep_alive`] is called.
    fn keep_alive_interval(&self) -> Duration;
}

hapax_core::config! {
    /// Configuration of a [`BrokerConsumer`].
    #[derive(Clone, Debug)]
    pub struct ConsumerConfig {
        /// How many messages are handled at once. With 1, messages are handled in the order of
        /// delivery, except that others overtake a message that is retried.
        max_concurrent: usize = 16,
        /// How many attempts a message gets before it becomes a dead letter.
        max_attempts: u32 = 10,
        /// How long a message waits after a failed attempt, and how long the consumer waits while the
        /// broker is down.
        backoff: Backoff = Backoff::default(),
        /// The longest that the consumer waits for running handlers when it stops.
        shutdown_timeout: Duration = Duration::from_secs(30),
    }
}

impl ConsumerConfig {
    /// The defaults: 16 messages at once, 10 attempts.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Receives, deduplicates, handles and acknowledges messages.
///
/// ```no_run
/// # #[cfg(feature = "nats")] {
/// use hapax_core::{inbox::Inbox, memory::MemoryStore};
/// use hapax_relay::consumer::{BrokerConsumer, MessageHandler, InboundMessage, NatsSource, MessageHandlerError};
/// use std::sync::Arc;
///
/// struct Billing;
///
/// #[async_trait::async_trait]
/// impl MessageHandler for Billing {
///     async fn handle(&self, order: &InboundMessage) -> Result<(), MessageHandlerError> {
///         let order: serde_json::Value = serde_json::from_slice(&order.payload)
///             .map_err(|_| MessageHandlerError::Poison("the order is no JSON".into()))?;
///         // … write the invoice …
///         Ok(())
///     }
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = NatsSource::new("nats://127.0.0.1:4222", "orders", "billing")?;
/// BrokerConsumer::new("billing", orders, Billing)
///     .inbox(Inbox::new(Arc::new(MemoryStore::default())))
///     .run(std::future::pending())
///     .await;
/// # Ok(()) } }
/// ```
pub struct BrokerConsumer {
    name: String,
    source: Box<dyn MessageSource>,
    handler: Box<dyn MessageHandler>,
    inbox: Option<Inbox>,
    config: ConsumerConfig,
}

impl BrokerConsumer {
    /// A consumer of this name, without an inbox: the handler deduplicates in its own transaction.
    pub fn new(name: &str, source: impl MessageSource, handler: impl MessageHandler) -> Self {
        Self {
            name: name.into(),
            source: Box::new(source),
            handler: Box::new(handler),
            inbox: None,
            config: ConsumerConfig::default(),
        }
    }

    /// Claims each message in this inbox before it is handled, and settles it afterwards.
    #[must_use]
    pub fn inbox(mut self, inbox: Inbox) -> Self {
        self.inbox = Some(inbox);
        self
    }

    hapax_core::builder_methods! {
        /// Sets the configuration.
        config: ConsumerConfig;
    }

    /// Consumes until `stop` completes, then waits for running handlers, up to the shutdown
    /// timeout.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let consumer = Arc::new(self);
        let mut handling = JoinSet::new();
        tokio::select! {
            () = stop => {}
            () = consumer.work(&mut handling) => {}
        }
        let done = async { while handling.join_next().await.is_some() {} };
        if timeout(consumer.config.shutdown_timeout, done).await.is_err() {
            tracing::warn!("some messages are still being handled; they will be delivered again");
        }
    }

    /// Never returns. If it is dropped during `receive`, the broker delivers the received messages
    /// again.
    async fn work(self: &Arc<Self>, handling: &mut JoinSet<()>) {
        let slots = Arc::new(Semaphore::new(self.config.max_concurrent.max(1)));
        let mut failures = 0;
        loop {
            while handling.try_join_next().is_some() {}
            // Wait for a free slot; the semaphore is never closed.
            drop(slots.acquire().await);
            match self.source.receive(slots.available_permits()).await {
                Ok(deliveries) => {
                    failures = 0;
                    for delivery in deliveries {
                        let Ok(slot) = slots.clone().acquire_owned().await else { return };
                        let this = self.clone();
                        handling.spawn(async move { this.handle(delivery, slot).await });
                    }
                }
                Err(failure) => {
                    failures += 1;
                    tracing::warn!(source = self.source.name(), "receiving failed: {failure}");
                    sleep(self.config.backoff.after(failures)).await;
                }
            }
        }
    }

    fn count(&self, result: &'static str) {
        let source = self.source.name();
        metrics::counter!(metric_names::CONSUMED, "source" => source, "result" => result)
            .increment(1);
    }
}
