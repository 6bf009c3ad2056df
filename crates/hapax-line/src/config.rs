use std::sync::Arc;
use std::time::Duration;

use hapax_core::lock::OnStoreError;
use hapax_core::queue::QueueName;
use hapax_core::worker::Backoff;
use hapax_core::{OnUnknown, Tenant};

use crate::LockRules;

/// Configuration of a [`Gateway`](crate::Gateway).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    pub(crate) rules: Arc<LockRules>,
    pub(crate) tenant: Tenant,
    pub(crate) queue: QueueName,
    pub(crate) lease: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) backoff: Backoff,
    pub(crate) retention: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) handler_timeout: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) reply_window: Duration,
    pub(crate) on_unknown: OnUnknown,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) poll_interval: Duration,
    pub(crate) shutdown_timeout: Duration,
}

impl Default for GatewayConfig {
    /// As the flags of `hapax line`, with a handler timeout of a minute.
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            tenant: Tenant::default(),
            queue: QueueName::new("line").expect("`line` is a valid name"),
            lease: Duration::from_secs(30),
            max_attempts: 5,
            backoff: Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
            retention: Duration::from_secs(24 * 3600),
            store_timeout: Duration::from_millis(500),
            handler_timeout: Duration::from_secs(60),
            max_in_flight: 256,
            reply_window: Duration::from_secs(50),
            on_unknown: OnUnknown::TakeOver,
            on_store_error: OnStoreError::Open,
            poll_interval: Duration::from_millis(500),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}

impl GatewayConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Which events are locked, and how.
    #[must_use]
    pub fn rules(mut self, rules: LockRules) -> Self {
        self.rules = Arc::new(rules);
        self
    }

    /// The tenant that owns the locks and events.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// The queue that stores events until they are handled; `line` by default.
    #[must_use]
    pub fn queue(mut self, queue: QueueName) -> Self {
        self.queue = queue;
        self
    }

    /// How long an event stays with a gateway that does not renew its lease, such as one that died.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often an event is tried before it is a dead letter.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// How long an event waits after a failed attempt.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// How long an event is recognised as a duplicate after it was handled.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// The longest that the store calls of one webhook may take together, and later those before one
    /// event is handled.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = timeout;
        self
    }

    /// The longest that handling one event may take.
    #[must_use]
    pub fn handler_timeout(mut self, timeout: Duration) -> Self {
        self.handler_timeout = timeout;
        self
    }

    /// How many events are handled at once.
    #[must_use]
    pub fn max_in_flight(mut self, events: usize) -> Self {
        self.max_in_flight = events;
        self
    }

    /// How long after its arrival an event's reply token is used.
    #[must_use]
    pub fn reply_window(mut self, window: Duration) -> Self {
        self.reply_window = window;
        self
    }

    /// What happens to an event whose gateway died half-way, or whose handler reports an unknown
    /// outcome.
    #[must_use]
    pub fn on_unknown(mut self, on_unknown: OnUnknown) -> Self {
        self.on_unknown = on_unknown;
        self
    }

    /// What happens to events while the store is down.
    #[must_use]
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.on_store_error = on_store_error;
        self
    }

    /// How often the queue is read without a hint.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }

    /// The longest that the gateway waits for events in hand when it stops.
    #[must_use]
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.shutdown_timeout = timeout;
        self
    }
}
