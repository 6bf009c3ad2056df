//! How long we may believe in a lease.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// The lease of one batch, counted from before it was asked for, so that we never believe in it
/// longer than the store does.
pub(crate) struct Held(Mutex<Instant>);

impl Held {
    pub(crate) fn new(asked_at: Instant, lease: Duration) -> Self {
        Self(Mutex::new(asked_at + lease))
    }

    pub(crate) fn until(&self) -> Instant {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn set(&self, until: Instant) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = until;
    }

    /// Whether a row of it may still be sent.
    pub(crate) fn is_ours(&self) -> bool {
        Instant::now() < self.until()
    }
}
