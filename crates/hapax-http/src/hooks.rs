use hapax_core::meters;

/// What happened to a keyed request. Nothing in it identifies a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// It is the first, and runs.
    Started,
    /// Its answer is kept.
    Kept,
    /// Its answer was too large to keep; a tombstone is.
    NotKept,
    /// The key was given back; a retry may run.
    GivenBack,
    /// It got the first one's answer.
    Replayed,
    /// It got the first one's answer after waiting for it.
    Waited,
    /// It waited in vain: the first one still runs.
    Conflict,
    /// Its key belongs to another request.
    Mismatch,
    /// It ran, but another attempt had taken over.
    Lost,
    /// Nobody knows whether an earlier attempt had its effect.
    Unknown,
    /// The store failed, and nothing ran.
    StoreError,
    /// The store failed, and it ran without protection.
    Unprotected,
    /// Its key or its scope was missing or malformed, or it was too large.
    Refused,
}

impl Event {
    /// The label of the metric `hapax_idempotency_total`.
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
pub trait Hooks: Send + Sync + 'static {
    /// Something happened to a request with this method.
    fn on(&self, event: Event, method: &http::Method);
}

/// Tells nobody (the metrics count all the same).
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Hooks for Silent {
    fn on(&self, _event: Event, _method: &http::Method) {}
}

impl crate::Settings {
    pub(crate) fn tell(&self, event: Event, method: &http::Method) {
        metrics::counter!(meters::IDEMPOTENCY, "event" => event.as_str()).increment(1);
        self.hooks.on(event, method);
    }
}
