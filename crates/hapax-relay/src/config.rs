use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::QueueName;

use crate::{Backoff, CloudEvents};

/// Configuration of a [`Relay`](crate::Relay).
#[derive(Clone, Debug)]
pub struct RelayConfig {
    pub(crate) queue: QueueName,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) after_dead: AfterDead,
    pub(crate) retention: Duration,
    pub(crate) max_batch: usize,
    pub(crate) max_batches: usize,
    pub(crate) poll_interval: Duration,
    pub(crate) send_timeout: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) cloudevents: Option<Arc<CloudEvents>>,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            queue: QueueName::outbox(),
            lease: Duration::from_secs(30),
            max_attempts: 10,
            backoff: Backoff::default(),
            after_dead: AfterDead::Wait,
            retention: Duration::from_secs(3600),
            max_batch: 1000,
            max_batches: 4,
            poll_interval: Duration::from_millis(500),
            send_timeout: Duration::from_secs(10),
            store_timeout: Duration::from_secs(5),
            shutdown_timeout: Duration::from_secs(30),
            cloudevents: None,
        }
    }
}

impl RelayConfig {
    /// The defaults: the queue `outbox`, leases of 30 s, 10 attempts.
    pub fn new() -> Self {
        Self::default()
    }

    /// The queue to drain.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// How long leased rows stay with a relay that does not renew them, such as one that died.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often a row is tried before it becomes a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long a row waits after a failed attempt, and the relay between two checks of a sink that
    /// is down.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// What happens to the later rows of a dead letter's key.
    #[must_use]
    pub fn after_dead(mut self, after_dead: AfterDead) -> Self {
        self.after_dead = after_dead;
        self
    }

    /// How long the id of a delivered row is still recognised as a duplicate.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The most rows of one lease; the relay adapts the actual number to the load.
    #[must_use]
    pub fn max_batch(mut self, rows: usize) -> Self {
        self.max_batch = rows;
        self
    }

    /// How many leases are worked on at the same time.
    #[must_use]
    pub fn max_batches(mut self, batches: usize) -> Self {
        self.max_batches = batches;
        self
    }

    /// How often the queue is read without a hint: hints may be lost, and retries come due.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// The longest that sending one message may take.
    #[must_use]
    pub fn send_timeout(mut self, timeout: Duration) -> Self {
        self.send_timeout = timeout;
        self
    }

    /// The longest that one store call may take. Stores have a timeout of their own, which should be
    /// shorter.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// The longest that the relay waits for messages in flight when it stops.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }

    /// Sends CloudEvents.
    #[must_use]
    pub fn cloudevents(mut self, cloudevents: CloudEvents) -> Self {
        self.cloudevents = Some(Arc::new(cloudevents));
        self
    }
}

/// What happens to the later rows of a dead letter's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDead {
    /// They wait until the dead letter is requeued or discarded: the order is kept.
    Wait,
    /// They are sent without it.
    Continue,
}
