use std::time::Duration;

use hapax_core::queue::QueueName;

use crate::{Backoff, CloudEvents};

hapax_core::config! {
    /// Configuration of a [`Relay`](crate::Relay).
    #[derive(Clone, Debug)]
    pub struct RelayConfig {
        /// The queue to drain; `outbox` by default.
        queue: QueueName = QueueName::outbox(),
        /// How long leased rows stay with a relay that does not renew them, such as one that died.
        lease: Duration = Duration::from_secs(30),
        /// How often a row is tried before it becomes a dead letter.
        max_attempts: u32 = 10,
        /// How long a row waits after a failed attempt, and the relay between two checks of a sink that
        /// is down.
        backoff: Backoff = Backoff::default(),
        /// The policy for the later rows of a dead letter's key.
        after_dead: AfterDead = AfterDead::Wait,
        /// How long the id of a delivered row is still recognised as a duplicate.
        retention: Duration = Duration::from_secs(3600),
        /// The most rows of one lease; the relay adapts the actual number to the load.
        max_batch: usize = 1000,
        /// How many leases are worked on at the same time.
        max_batches: usize = 4,
        /// How often the queue is read without a hint: hints may be lost, and retries come due.
        poll_interval: Duration = Duration::from_millis(500),
        /// The longest that sending one message may take.
        send_timeout: Duration = Duration::from_secs(10),
        /// The longest that one store call may take. Stores have a timeout of their own, which should be
        /// shorter.
        store_timeout: Duration = Duration::from_secs(5),
        /// The longest that the relay waits for messages in flight when it stops.
        shutdown_timeout: Duration = Duration::from_secs(30),
        /// Sends CloudEvents, if given.
        cloudevents: Option<CloudEvents> = None,
    }
}

impl RelayConfig {
    /// The defaults: the queue `outbox`, leases of 30 s, 10 attempts.
    pub fn new() -> Self {
        Self::default()
    }
}

/// The policy for the later rows of a dead letter's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDead {
    /// The later rows wait until the dead letter is requeued or discarded: the order is kept.
    Wait,
    /// The later rows are sent without the dead letter.
    Continue,
}
