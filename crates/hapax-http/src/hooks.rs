use std::time::Duration;

use hapax_core::metric_names;
use http::Method;

use crate::IdempotencyConfig;

/// An event in the life of a keyed request. Never identifies a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdempotencyEvent {
    /// The request is the first with its key, and runs.
    Started,
    /// The response is stored.
    Kept,
    /// A tombstone is stored instead of the response, which was too large or an event stream.
    NotKept,
    /// The key was given back; a retry may run.
    GivenBack,
    /// The request got the first one's response.
    Replayed,
    /// The request got the first one's response after waiting for it.
    Waited,
    /// The first one was still running when the wait was over.
    Conflict,
    /// The key belongs to another request.
    Mismatch,
    /// The request ran, but another attempt had taken over.
    Lost,
    /// Whether this or an earlier attempt had its effect is unknown.
    Unknown,
    /// The store failed: nothing ran, or the outcome of the run is not stored yet.
    StoreError,
    /// The store failed, and the request ran without protection.
    Unprotected,
    /// The key or the caller was missing or malformed, the request was too large, or the layer is
    /// closed.
    Refused,
}

impl IdempotencyEvent {
    /// The label in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Started => "started",
            Self::Kept => "kept",
            Self::NotKept => "not_kept",
            Self::GivenBack => "given_back",
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Conflict => "conflict",
            Self::Mismatch => "mismatch",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
            Self::StoreError => "store_error",
            Self::Unprotected => "unprotected",
            Self::Refused => "refused",
        }
    }
}

/// Observes keyed requests. Called while the request is handled, so it must not block.
///
/// ```
/// use std::time::Duration;
/// use hapax_http::{Hooks, IdempotencyEvent};
///
/// struct Log;
/// impl Hooks for Log {
///     fn on(&self, event: IdempotencyEvent, _method: &http::Method) {
///         if event == IdempotencyEvent::Unknown {
///             tracing::warn!("the outcome of a request is unknown");
///         }
///     }
///     fn answered(&self, outcome: IdempotencyEvent, _method: &http::Method, took: Duration) {
///         tracing::debug!(outcome = outcome.as_str(), ?took);
///     }
/// }
/// ```
pub trait Hooks: Send + Sync + 'static {
    /// Something happened to a request with this method.
    fn on(&self, event: IdempotencyEvent, method: &Method);

    /// The response to a request with this method begins, this long after the request, waiting
    /// included. `outcome` is [`IdempotencyEvent::Started`] where the request ran, else the reason
    /// why it did not.
    fn answered(&self, _outcome: IdempotencyEvent, _method: &Method, _took: Duration) {}
}

/// Observes nothing; metrics are counted nevertheless.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl Hooks for NoHooks {
    fn on(&self, _event: IdempotencyEvent, _method: &Method) {}
}

impl IdempotencyConfig {
    pub(crate) fn record_event(&self, event: IdempotencyEvent, method: &Method) {
        metrics::counter!(metric_names::IDEMPOTENCY, "event" => event.as_str()).increment(1);
        self.hooks.on(event, method);
    }

    pub(crate) fn record_answer(&self, outcome: IdempotencyEvent, method: &Method, took: Duration) {
        metrics::histogram!(metric_names::IDEMPOTENCY_LATENCY, "outcome" => outcome.as_str())
            .record(took);
        self.hooks.answered(outcome, method, took);
    }
}
