//! The other side: receives what a relay sent, and lets each message have its effect once.
//!
//! ```text
//!   broker ──► receive ──► inbox: seen before? ──► your handler ──► settle / commit ──► acknowledge
//!                             │ yes: acknowledge       │ fails
//!                             ▼                        ▼
//!                                              again later, with backoff; after the last attempt,
//!                                              or at once where it is poison: the dead letters
//! ```
//!
//! Two ways to have an effect once:
//!
//! - **In your own SQL transaction**: a consumer without an inbox. The handler puts
//!   [`Incoming::id`] into the inbox of the store's crate inside its transaction, does its work there
//!   and commits; a second delivery finds the id and changes nothing. This is exactly once.
//! - **Elsewhere**: [`Consumer::inbox`] claims the message before the handler and settles it after.
//!   A crash in between runs the handler again (at least once); pass [`Incoming::fence`] or the id on
//!   to whatever can refuse a second effect.

#[cfg(feature = "amqp")]
mod amqp;
mod handling;
mod incoming;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::inbox::Inbox;
use hapax_core::meters;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::{Backoff, Failure};
#[cfg(feature = "amqp")]
pub use amqp::RabbitQueue;
pub use incoming::Incoming;
#[cfg(feature = "nats")]
pub use nats::NatsStream;
#[cfg(feature = "redis")]
pub use redis::RedisStream;

/// What to do with a message.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Has the effect. It may be called again for the same message, also at the same time by another
    /// process; the message's id tells. Runs in the message's [trace](hapax_core::trace).
    async fn handle(&self, message: &Incoming) -> Result<(), Trouble>;
}

/// Why a message could not be handled. The reason goes to the dead letters: nothing personal.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// It may work later.
    #[error("{0}")]
    Passing(String),
    /// It never will.
    #[error("{0}")]
    Poison(String),
}

/// Where messages come from: one queue or stream of a broker.
#[async_trait]
pub trait Source: Send + Sync + 'static {
    /// A short word for logs and metric labels.
    fn name(&self) -> &'static str;

    /// Up to so many messages; none where there were none for a while. Connects where that is needed.
    async fn receive(&self, at_most: usize) -> Result<Vec<Box<dyn Delivery>>, Failure>;
}

/// One delivery of a message. Dropped without a word it is delivered again, when the broker thinks so.
#[async_trait]
pub trait Delivery: Send + Sync {
    /// The message.
    fn message(&self) -> &Incoming;

    /// It had its effect.
    async fn ack(&self) -> Result<(), Failure>;

    /// It is to be delivered again, after this.
    async fn again(&self, after: Duration) -> Result<(), Failure>;

    /// Puts it into the dead letters, and then takes it off the queue.
    async fn bury(&self, reason: &str) -> Result<(), Failure>;

    /// Somebody is still at it.
    async fn still_at_it(&self) -> Result<(), Failure>;

    /// How often that must be said.
    fn every(&self) -> Duration;
}

/// How a [`Consumer`] works.
#[derive(Clone, Debug)]
pub struct Habits {
    /// How many messages are handled at once. With 1 they are handled in the order in which they are
    /// delivered; a message that is tried again is overtaken by others in any case.
    pub at_once: usize,
    /// How often a message is tried before it goes to the dead letters.
    pub max_attempts: u32,
    /// How long a message waits after a failed try, and the consumer while the broker is away.
    pub backoff: Backoff,
    /// How long handlers may take when the consumer stops.
    pub stop_limit: Duration,
}

impl Default for Habits {
    /// 16 at once, 10 attempts.
    fn default() -> Self {
        Self {
            at_once: 16,
            max_attempts: 10,
            backoff: Backoff::default(),
            stop_limit: Duration::from_secs(30),
        }
    }
}

/// Receives, deduplicates, handles, acknowledges.
///
/// ```no_run
/// # #[cfg(feature = "nats")] {
/// use hapax_core::{inbox::Inbox, memory::MemoryStore};
/// use hapax_relay::consumer::{Consumer, Handler, Incoming, NatsStream, Trouble};
/// use std::sync::Arc;
///
/// struct Billing;
///
/// #[async_trait::async_trait]
/// impl Handler for Billing {
///     async fn handle(&self, order: &Incoming) -> Result<(), Trouble> {
///         let order: serde_json::Value = serde_json::from_slice(&order.payload)
///             .map_err(|_| Trouble::Poison("the order is no JSON".into()))?;
///         // … write the invoice …
///         Ok(())
///     }
/// }
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let orders = NatsStream::new("nats://127.0.0.1:4222", "orders", "billing")?;
/// Consumer::new("billing", orders, Billing)
///     .inbox(Inbox::new(Arc::new(MemoryStore::default())))
///     .run(std::future::pending())
///     .await;
/// # Ok(()) } }
/// ```
pub struct Consumer(Arc<Inner>);

struct Inner {
    name: String,
    source: Box<dyn Source>,
    handler: Box<dyn Handler>,
    inbox: Option<Inbox>,
    habits: Habits,
}

impl Consumer {
    /// A consumer of this name, without an inbox: the handler has one in its transaction.
    pub fn new(name: &str, source: impl Source, handler: impl Handler) -> Self {
        Self(Arc::new(Inner {
            name: name.into(),
            source: Box::new(source),
            handler: Box::new(handler),
            inbox: None,
            habits: Habits::default(),
        }))
    }

    /// Claims each message in this inbox before it is handled, and settles it after.
    #[must_use]
    pub fn inbox(self, inbox: Inbox) -> Self {
        self.change(|inner| inner.inbox = Some(inbox))
    }

    /// Works like this.
    #[must_use]
    pub fn habits(self, habits: Habits) -> Self {
        self.change(|inner| inner.habits = habits)
    }

    fn change(mut self, change: impl FnOnce(&mut Inner)) -> Self {
        // Nobody else has it before it runs.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            change(inner);
        }
        self
    }

    /// Works until `stop`, and then until the handlers that were begun are done.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let consumer = self.0;
        let mut stop = pin!(stop);
        let mut handling = JoinSet::new();
        tokio::select! {
            () = &mut stop => {}
            () = consumer.work(&mut handling) => {}
        }
        let done = async { while handling.join_next().await.is_some() {} };
        if timeout(consumer.habits.stop_limit, done).await.is_err() {
            tracing::warn!("some messages are still being handled; they will be delivered again");
        }
    }
}

impl Inner {
    /// Never ends by itself. Given up in the middle of a `receive`, messages that were just handed out
    /// are delivered again, later.
    async fn work(self: &Arc<Self>, handling: &mut JoinSet<()>) {
        let slots = Arc::new(Semaphore::new(self.habits.at_once.max(1)));
        let mut failures = 0;
        loop {
            while handling.try_join_next().is_some() {}
            // The semaphore is never closed.
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
                    sleep(self.habits.backoff.after(failures)).await;
                }
            }
        }
    }

    fn count(&self, result: &'static str) {
        let source = self.source.name();
        metrics::counter!(meters::CONSUMED, "source" => source, "result" => result).increment(1);
    }
}
