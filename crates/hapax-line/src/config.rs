use std::sync::Arc;
use std::time::Duration;

use hapax_core::lock::OnStoreError;
use hapax_core::queue::QueueName;
use hapax_core::worker::Backoff;
use hapax_core::{OnUnknown, Tenant};

use crate::LockRules;

hapax_core::config! {
    /// Configuration of a [`Gateway`](crate::Gateway); the defaults are those of the flags of `hapax line`,
    /// with a handler timeout of a minute.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct GatewayConfig {
        /// Which events are locked, and how.
        rules: LockRules = LockRules::default(),
        /// The tenant that owns the locks and events.
        tenant: Tenant = Tenant::default(),
        /// The queue that stores events until they are handled; by default that of the channel
        /// ([`ChannelSecrets::queue`](crate::ChannelSecrets::queue)), and while a secret is rotated that of
        /// the old one is handled too.
        queue: Option<QueueName> = None,
        /// How long an event stays with a gateway that does not renew its lease, such as one that died.
        lease: Duration = Duration::from_secs(30),
        /// How often an event is tried before it is a dead letter.
        max_attempts: u32 = 5,
        /// How long an event waits after a failed attempt.
        backoff: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60)),
        /// How long an event is recognised as a duplicate after it was handled.
        retention: Duration = Duration::from_secs(24 * 3600),
        /// The longest that the store calls of one webhook may take together, and later those before one
        /// event is handled.
        store_timeout: Duration = Duration::from_millis(500),
        /// The longest that handling one event may take.
        handler_timeout: Duration = Duration::from_secs(60),
        /// How many events are handled at once.
        max_in_flight: usize = 256,
        /// How long after its arrival an event's reply token is used.
        reply_window: Duration = Duration::from_secs(50),
        /// The policy for an event whose gateway died half-way, or whose handler reports an unknown
        /// outcome.
        on_unknown: OnUnknown = OnUnknown::TakeOver,
        /// Whether events are refused or handled without protection while the store is down.
        on_store_error: OnStoreError = OnStoreError::Open,
        /// How often the queue is read without a hint.
        poll_interval: Duration = Duration::from_millis(500),
        /// Whether operators can [pause](hapax_core::worker::pause) the queue, which costs one read of a record each second.
        pausable: bool = true,
        /// The label of the gateway's claims, for operators
        /// ([`Token::labelled`](hapax_core::Token::labelled)).
        label: Option<Arc<str>> = None,
        /// The longest that the gateway waits for events in hand when it stops.
        shutdown_timeout: Duration = Duration::from_secs(30),
    }
}

impl GatewayConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }
}
