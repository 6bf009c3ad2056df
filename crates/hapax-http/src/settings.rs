use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::CommandConfig;
use hapax_core::lock::OnStoreError;
use hapax_core::{Fingerprint, OnUnknown, Tenant};
use http::Method;
use http::request::Parts;

use crate::{FingerprintOf, Hooks, Scope, Silent, Verdicts};

/// Says which path, or route, a request is for; see [`Settings::path`].
pub type PathOf = Arc<dyn Fn(&Parts) -> String + Send + Sync>;

/// How requests with a key are treated.
///
/// ```
/// use hapax_http::{FingerprintOf, Scope, Settings, Verdict, Verdicts};
/// use http::{Method, StatusCode};
/// use std::time::Duration;
/// let settings = Settings {
///     scope: Scope::Cookie("session".into()),
///     methods: vec![Method::POST, Method::PUT, Method::DELETE],
///     require_key: true,
///     retention: Duration::from_secs(7 * 86_400),
///     fingerprint: FingerprintOf::Json,
///     verdicts: Verdicts::default().with(StatusCode::NOT_FOUND, Verdict::GiveBack),
///     ..Settings::default()
/// };
/// ```
#[derive(Clone)]
pub struct Settings {
    /// Whose claims they are.
    pub tenant: Tenant,
    /// Who is asking, among those: a key means something only together with its caller.
    pub scope: Scope,
    /// Which methods are keyed. Safe ones (GET, HEAD, OPTIONS, TRACE) never are.
    pub methods: Vec<Method>,
    /// Which path a key belongs to; that of the request's URI by default. **Needed inside a nested
    /// axum router**, which hides its own prefix from the layers in it: two of them would take each
    /// other's keys for their own.
    ///
    /// ```
    /// use axum::extract::OriginalUri;
    /// use hapax_http::Settings;
    /// use std::sync::Arc;
    /// let settings = Settings {
    ///     path: Some(Arc::new(|parts| match parts.extensions.get::<OriginalUri>() {
    ///         Some(uri) => uri.path().to_owned(),
    ///         None => parts.uri.path().to_owned(),
    ///     })),
    ///     ..Settings::default()
    /// };
    /// ```
    pub path: Option<PathOf>,
    /// Refuse keyed methods without a key.
    pub require_key: bool,
    /// How long a duplicate waits for the first one's answer.
    pub wait: Duration,
    /// How long the first one is believed alive without renewal.
    pub lease: Duration,
    /// How long an answer is kept.
    pub retention: Duration,
    /// What to do where an earlier attempt may or may not have had its effect.
    pub on_unknown: OnUnknown,
    /// What to do where the store fails.
    pub on_store_error: OnStoreError,
    /// The most patience with the store, should it break its own limit.
    pub store_limit: Duration,
    /// The largest keyed request, and the largest answer that is kept, in bytes.
    pub limit: usize,
    /// What makes two requests the same.
    pub fingerprint: FingerprintOf,
    /// What becomes of an answer, by its status.
    pub verdicts: Verdicts,
    /// Who is told.
    pub hooks: Arc<dyn Hooks>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tenant: Tenant::default(),
            scope: Scope::default(),
            methods: vec![Method::POST, Method::PATCH],
            path: None,
            require_key: false,
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(86_400),
            on_unknown: OnUnknown::Refuse,
            on_store_error: OnStoreError::Closed,
            store_limit: Duration::from_secs(5),
            limit: 1024 * 1024,
            fingerprint: FingerprintOf::default(),
            verdicts: Verdicts::default(),
            hooks: Arc::new(Silent),
        }
    }
}

impl Settings {
    pub(crate) fn begin(&self, fingerprint: Fingerprint, wait: Duration) -> CommandConfig {
        CommandConfig {
            fingerprint: Some(fingerprint),
            lease: self.lease,
            retention: self.retention,
            wait,
            on_unknown: self.on_unknown,
        }
    }

    pub(crate) fn has_keys(&self, method: &Method) -> bool {
        !method.is_safe() && self.methods.contains(method)
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("tenant", &self.tenant)
            .field("scope", &self.scope)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}
