use std::time::Duration;

use http::Method;

use hapax_core::metric_names;

/// What happened to a keyed request. Nothing in it identifies a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// It is the first, and runs.
    Started,
    /// Its answer is kept.
    Kept,
    /// It is kept that it happened, but not its answer: that was too large, or a stream of events.
    NotKept,
    /// The key was given back; a retry may run.
    GivenBack,
    /// It got the first one's answer.
    Replayed,
    /// It got the first one's answer after waiting for it.
    Waited,
    /// The first one still runs, and was waited for in vain.
    Conflict,
    /// Its key belongs to another request.
    Mismatch,
    /// It ran, but another attempt had taken over.
    Lost,
    /// Nobody knows whether this or an earlier attempt had its effect.
    Unknown,
    /// The store failed: nothing ran, or what ran is not stored yet.
    StoreError,
    /// The store failed, and it ran without protection.
    Unprotected,
    /// Its key or its scope was missing or malformed, it was too large, or the layer is closed.
    Refused,
}

impl Event {
    /// The label of the metrics.
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

/// Is told what happens. Called on the request's own path: be quick.
///
/// ```
/// use std::time::Duration;
/// use hapax_http::{Event, Hooks};
///
/// struct Log;
/// impl Hooks for Log {
///     fn on(&self, event: Event, _method: &http::Method) {
///         if event == Event::Unknown {
///             tracing::warn!("somebody should look at a request with an unknown outcome");
///         }
///     }
///     fn answered(&self, outcome: Event, _method: &http::Method, took: Duration) {
///         tracing::debug!(outcome = outcome.as_str(), ?took);
///     }
/// }
/// ```
pub trait Hooks: Send + Sync + 'static {
    /// Something happened to a request with this method.
    fn on(&self, event: Event, method: &Method);

    /// A request with this method has its answer's head after this time, the wait included.
    /// `outcome` is [`Event::Started`] where it ran, else why it did not.
    fn answered(&self, _outcome: Event, _method: &Method, _took: Duration) {}
}

/// Tells nobody (the metrics count all the same).
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Hooks for Silent {
    fn on(&self, _event: Event, _method: &Method) {}
}

impl crate::Settings {
    pub(crate) fn tell(&self, event: Event, method: &Method) {
        metrics::counter!(metric_names::IDEMPOTENCY, "event" => event.as_str()).increment(1);
        self.hooks.on(event, method);
    }

    pub(crate) fn tell_answered(&self, outcome: Event, method: &Method, took: Duration) {
        metrics::histogram!(metric_names::IDEMPOTENCY_LATENCY, "outcome" => outcome.as_str())
            .record(took);
        self.hooks.answered(outcome, method, took);
    }
}
