use std::sync::Arc;
use std::time::Duration;

use hapax_core::lock::OnStoreError;
use hapax_core::queue::QueueName;
use hapax_core::{OnUnknown, Tenant};

use crate::Rules;

/// How a [`Gateway`](crate::Gateway) works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which events are locked, and how.
    pub rules: Arc<Rules>,
    /// Whose locks and events they are.
    pub tenant: Tenant,
    /// The queue that events wait in.
    pub queue: QueueName,
    /// How long a gateway that died is believed alive.
    pub lease: Duration,
    /// How often an event is tried before it is a dead letter.
    pub max_attempts: u32,
    /// How long an event waits after its first failure; twice as long after each further one.
    pub backoff: Duration,
    /// The longest such wait.
    pub backoff_max: Duration,
    /// How long an event is recognised after it was handled.
    pub remember: Duration,
    /// What all store calls for a webhook, and then those before an event is handled, may take.
    pub store_budget: Duration,
    /// How long handling one event may take.
    pub handle_limit: Duration,
    /// How many events are handled at once.
    pub in_flight: usize,
    /// For how long a reply token is believed to work.
    pub reply_within: Duration,
    /// What happens to an event whose gateway died in the middle, or whose handler does not know.
    pub on_unknown: OnUnknown,
    /// What happens to events while the store is away.
    pub on_store_error: OnStoreError,
    /// How often the queue is looked at where no hint comes.
    pub poll: Duration,
    /// How long events in hand may take at the end.
    pub stop_limit: Duration,
}

impl Default for Settings {
    /// As the flags of `hapax line` say, and a minute for a handler.
    fn default() -> Self {
        Self {
            rules: Arc::default(),
            tenant: Tenant::default(),
            queue: queue(),
            lease: Duration::from_secs(30),
            max_attempts: 5,
            backoff: Duration::from_secs(1),
            backoff_max: Duration::from_secs(60),
            remember: Duration::from_secs(24 * 3600),
            store_budget: Duration::from_millis(500),
            handle_limit: Duration::from_secs(60),
            in_flight: 256,
            reply_within: Duration::from_secs(50),
            on_unknown: OnUnknown::TakeOver,
            on_store_error: OnStoreError::Open,
            poll: Duration::from_millis(500),
            stop_limit: Duration::from_secs(30),
        }
    }
}

/// The queue of LINE's events.
fn queue() -> QueueName {
    QueueName::new("line").expect("it is a name")
}
