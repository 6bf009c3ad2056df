use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::activity::{self, Activity, RequestActivity};
use hapax_core::lock::OnStoreError;
use hapax_core::{OnUnknown, Tenant, metric_names};
use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode};

use crate::{CallerScope, FingerprintOf, OverloadLimits, grpc};

/// Headers besides `Authorization` that identify a caller by default.
const DEFAULT_CREDENTIAL_HEADERS: [&str; 4] =
    ["x-api-key", "api-key", "x-auth-token", "x-access-token"];

type PathOf = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// How requests with a key are treated.
///
/// ```
/// use hapax_http::{CallerScope, FingerprintOf, IdempotencyConfig, Verdict};
/// use http::{Method, StatusCode};
/// use std::time::Duration;
/// let config = IdempotencyConfig::new()
///     .with_scope(CallerScope::Cookie("session".into()))
///     .with_methods([Method::POST, Method::PUT, Method::DELETE])
///     .with_required_key(true)
///     .with_retention(Duration::from_secs(7 * 86_400))
///     .with_fingerprint(FingerprintOf::Json)
///     .with_verdict(StatusCode::NOT_FOUND, Verdict::GiveBack);
/// ```
#[derive(Clone)]
pub struct IdempotencyConfig {
    pub(crate) tenant: Tenant,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) scope: CallerScope,
    pub(crate) credential_headers: Vec<HeaderName>,
    pub(crate) methods: Vec<Method>,
    pub(crate) path: Option<PathOf>,
    pub(crate) require_key: bool,
    pub(crate) wait: Duration,
    pub(crate) lease: Duration,
    pub(crate) retention: Duration,
    pub(crate) on_unknown: OnUnknown,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) store_timeout: Duration,
    pub(crate) max_body: usize,
    pub(crate) body_timeout: Duration,
    pub(crate) body_rate: usize,
    pub(crate) detached_timeout: Duration,
    pub(crate) limits: OverloadLimits,
    pub(crate) fingerprint: FingerprintOf,
    pub(crate) verdicts: Verdicts,
    pub(crate) hooks: Arc<dyn Hooks>,
}

impl Default for IdempotencyConfig {
    fn default() -> Self {
        Self {
            tenant: Tenant::default(),
            label: None,
            scope: CallerScope::default(),
            credential_headers: DEFAULT_CREDENTIAL_HEADERS.map(HeaderName::from_static).to_vec(),
            methods: vec![Method::POST, Method::PATCH],
            path: None,
            require_key: false,
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(86_400),
            on_unknown: OnUnknown::Refuse,
            on_store_error: OnStoreError::Closed,
            store_timeout: Duration::from_secs(5),
            max_body: 1024 * 1024,
            body_timeout: Duration::from_secs(30),
            body_rate: 1024,
            detached_timeout: Duration::from_secs(60),
            limits: OverloadLimits::default(),
            fingerprint: FingerprintOf::default(),
            verdicts: Verdicts::default(),
            hooks: Arc::new(NoHooks),
        }
    }
}

macro_rules! builder_methods {
    ($($(#[doc = $doc:literal])+ $with:ident, $field:ident: $type:ty;)+) => {
        $($(#[doc = $doc])+
        #[must_use]
        pub fn $with(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }

        #[doc = concat!("See [`", stringify!($with), "`](Self::", stringify!($with), ").")]
        pub fn $field(&self) -> &$type {
            &self.$field
        })+
    };
}

impl IdempotencyConfig {
    /// The default configuration.
    pub fn new() -> Self {
        Self::default()
    }

    builder_methods! {
        /// The tenant that owns the claims.
        with_tenant, tenant: Tenant;
        /// How the caller is identified: a key means something only together with its caller.
        with_scope, scope: CallerScope;
        /// Refuse keyed methods without a key.
        with_required_key, require_key: bool;
        /// How long a duplicate waits for the first one's response (10 s).
        with_wait, wait: Duration;
        /// How long the first one is believed alive without renewal (30 s).
        with_lease, lease: Duration;
        /// How long a response is kept (24 h).
        with_retention, retention: Duration;
        /// The policy for a key whose earlier attempt may or may not have had its effect.
        with_on_unknown, on_unknown: OnUnknown;
        /// The policy for a store that fails: refuse the request, or run it unprotected.
        with_on_store_error, on_store_error: OnStoreError;
        /// The longest that one call to the store may take, should the store exceed its own
        /// timeout (5 s).
        with_store_timeout, store_timeout: Duration;
        /// The largest keyed request, and the largest response that is kept, in bytes (1 MiB).
        with_max_body, max_body: usize;
        /// How long a keyed request's body may take to arrive (30 s), and one second more for each
        /// [`body_rate`](Self::with_body_rate) bytes of it; 408 `request-timeout` beyond that.
        with_body_timeout, body_timeout: Duration;
        /// The least rate of a keyed request's body, in bytes a second (1024).
        with_body_rate, body_rate: usize;
        /// How long a response that is too large to store, or an event stream, is read on after its
        /// client has left (60 s). Where it has not ended by then, its outcome is unknown.
        with_detached_timeout, detached_timeout: Duration;
        /// How much keyed requests may hold; shared by the layers that get clones of it.
        with_limits, limits: OverloadLimits;
        /// The parts of a request that make two requests the same.
        with_fingerprint, fingerprint: FingerprintOf;
        /// The verdict for each status.
        with_verdicts, verdicts: Verdicts;
    }

    /// Labels the owner of claims, for operators: such as the name of this process
    /// ([`Token::labelled`](hapax_core::Token::labelled)).
    #[must_use]
    pub fn with_label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(label.as_ref().into());
        self
    }

    /// The methods that take a key: POST and PATCH by default. Safe ones (GET, HEAD, OPTIONS,
    /// TRACE) never do.
    #[must_use]
    pub fn with_methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.methods = methods.into_iter().collect();
        self
    }

    /// See [`with_methods`](Self::with_methods).
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// The headers that identify a caller beside `Authorization`, where the scope is
    /// [`CallerScope::Authorization`]: `X-Api-Key`, `Api-Key`, `X-Auth-Token` and `X-Access-Token`
    /// by default.
    #[must_use]
    pub fn with_credential_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.credential_headers = names.into_iter().collect();
        self
    }

    /// See [`with_credential_headers`](Self::with_credential_headers).
    pub fn credential_headers(&self) -> &[HeaderName] {
        &self.credential_headers
    }

    /// Replaces the verdict for one status.
    #[must_use]
    pub fn with_verdict(mut self, status: StatusCode, verdict: Verdict) -> Self {
        self.verdicts = self.verdicts.with(status, verdict);
        self
    }

    /// The observer of keyed requests.
    #[must_use]
    pub fn with_hooks(mut self, hooks: impl Hooks) -> Self {
        self.hooks = Arc::new(hooks);
        self
    }

    /// The path that a key belongs to; that of the request's URI by default. **Needed inside a
    /// nested axum router**, which hides its own prefix from the layers in it: two of them would
    /// mix up each other's keys.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use hapax_http::IdempotencyConfig;
    /// let config = IdempotencyConfig::new().with_path(|parts| {
    ///     match parts.extensions.get::<OriginalUri>() {
    ///         Some(uri) => uri.path().to_owned(),
    ///         None => parts.uri.path().to_owned(),
    ///     }
    /// });
    /// ```
    #[must_use]
    pub fn with_path(mut self, path: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        self.path = Some(Arc::new(path));
        self
    }

    pub(crate) fn takes_key(&self, method: &Method) -> bool {
        !method.is_safe() && self.methods.contains(method)
    }

    pub(crate) fn record_event(&self, event: IdempotencyEvent, method: &Method) {
        metrics::counter!(metric_names::IDEMPOTENCY, "event" => event.as_str()).increment(1);
        self.hooks.on(event, method);
    }

    pub(crate) fn record_answer(&self, outcome: IdempotencyEvent, method: &Method, took: Duration) {
        let result = match outcome {
            IdempotencyEvent::Refused => RequestActivity::Refused,
            // What the store answered, or did not, is recorded with the claim.
            _ => RequestActivity::Answered,
        };
        activity::record(Activity::Request { tenant: &self.tenant, result, took });
        metrics::histogram!(metric_names::IDEMPOTENCY_LATENCY, "outcome" => outcome.as_str())
            .record(took);
        self.hooks.answered(outcome, method, took);
    }
}

impl fmt::Debug for IdempotencyConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyConfig")
            .field("tenant", &self.tenant)
            .field("scope", &self.scope)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

/// Whether a response is stored.
///
/// A service can decide that itself, by putting one of these into the extensions of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The response is stored, and every retry gets it.
    Keep,
    /// The response is passed on, and the key is free for a retry.
    GiveBack,
    /// The response is passed on, and the outcome counts as unknown.
    Unknown,
}

/// A response's verdict as far as its head decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadVerdict {
    Decided(Verdict),
    /// The outcome of a gRPC call is in its trailers.
    InTrailers,
}

/// The verdict for each status. 2xx, 3xx and 4xx are kept, except those that a retry may change (401,
/// 403, 408, 425, 429). After another 5xx a retry may run; a 502 or 504 of a gateway leaves the
/// outcome unknown. A gRPC response counts as the HTTP status that its `grpc-status` corresponds to.
///
/// ```
/// use hapax_http::{Verdict, Verdicts};
/// use http::StatusCode;
/// let verdicts = Verdicts::default().with(StatusCode::NOT_FOUND, Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::CREATED), Verdict::Keep);
/// assert_eq!(verdicts.of(StatusCode::NOT_FOUND), Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::INTERNAL_SERVER_ERROR), Verdict::GiveBack);
/// assert_eq!(verdicts.of(StatusCode::GATEWAY_TIMEOUT), Verdict::Unknown);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verdicts(BTreeMap<u16, Verdict>);

impl Verdicts {
    /// Replaces the verdict for one status.
    #[must_use]
    pub fn with(mut self, status: StatusCode, verdict: Verdict) -> Self {
        self.0.insert(status.as_u16(), verdict);
        self
    }

    /// The verdict for a response. The service's own (a [`Verdict`] in the extensions, or
    /// `Idempotency-Store: never`, which is removed) comes before that of the status.
    pub(crate) fn judge<R>(&self, response: &mut Response<R>) -> HeadVerdict {
        let store = response.headers_mut().remove("idempotency-store");
        if let Some(verdict) = response.extensions().get() {
            return HeadVerdict::Decided(*verdict);
        }
        if store.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"never")) {
            return HeadVerdict::Decided(Verdict::GiveBack);
        }
        let mut status = response.status();
        if status == StatusCode::OK && grpc::is_grpc(response.headers()) {
            match grpc::http_status(response.headers()) {
                Some(corresponding) => status = corresponding,
                None => return HeadVerdict::InTrailers,
            }
        }
        HeadVerdict::Decided(self.of(status))
    }

    /// The verdict at the end of a response. gRPC that ends without a `grpc-status` was cut.
    pub(crate) fn judge_end(&self, head: HeadVerdict, trailers: Option<&HeaderMap>) -> Verdict {
        match head {
            HeadVerdict::Decided(verdict) => verdict,
            HeadVerdict::InTrailers => trailers
                .and_then(grpc::http_status)
                .map_or(Verdict::Unknown, |status| self.of(status)),
        }
    }

    /// The verdict for a status.
    pub fn of(&self, status: StatusCode) -> Verdict {
        if let Some(verdict) = self.0.get(&status.as_u16()) {
            return *verdict;
        }
        match status.as_u16() {
            401 | 403 | 408 | 425 | 429 => Verdict::GiveBack,
            502 | 504 => Verdict::Unknown,
            200..=499 => Verdict::Keep,
            _ => Verdict::GiveBack,
        }
    }
}

/// An event in the life of a keyed request. Never identifies a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdempotencyEvent {
    /// The request is the first with its key, and runs.
    Started,
    /// The response is stored.
    Kept,
    /// A tombstone is stored instead of the response, which has ended and was too large or an event
    /// stream.
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
    /// The key or the caller was missing or malformed, the request was too large or too slow, there
    /// was no room for it, or the layer is closed.
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
