use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::QueueName;

use crate::{Backoff, CloudEvents};

/// How a [`Relay`](crate::Relay) works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which queue it drains.
    pub queue: QueueName,
    /// How long rows are believed to be in good hands without renewal.
    pub lease: Duration,
    /// How often a row is tried before it becomes a dead letter.
    pub max_attempts: u32,
    /// How long a row waits after a failed try, and the relay while the sink is away.
    pub backoff: Backoff,
    /// What becomes of the later rows of a dead letter's key.
    pub after_dead: AfterDead,
    /// How long a delivered row is still recognised as a duplicate.
    pub keep: Duration,
    /// The most rows of one lease; how many it really are follows the load.
    pub batch: usize,
    /// How many leases are worked on at once.
    pub batches: usize,
    /// How often the queue is looked at without a hint: hints may be lost, and retries come due.
    pub poll: Duration,
    /// How long one message may take.
    pub send_limit: Duration,
    /// How long one store call may take; stores keep their own limit, which should be shorter.
    pub call_limit: Duration,
    /// How long what is on its way may take when the relay stops.
    pub stop_limit: Duration,
    /// Sends CloudEvents.
    pub cloudevents: Option<Arc<CloudEvents>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            queue: QueueName::outbox(),
            lease: Duration::from_secs(30),
            max_attempts: 10,
            backoff: Backoff::default(),
            after_dead: AfterDead::Wait,
            keep: Duration::from_secs(3600),
            batch: 1000,
            batches: 4,
            poll: Duration::from_millis(500),
            send_limit: Duration::from_secs(10),
            call_limit: Duration::from_secs(5),
            stop_limit: Duration::from_secs(30),
            cloudevents: None,
        }
    }
}

/// What becomes of the later rows of a dead letter's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDead {
    /// They wait until it is requeued or discarded: the order is kept.
    Wait,
    /// They go on without it.
    Continue,
}
