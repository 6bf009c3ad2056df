use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::Begin;
use hapax_core::lock::OnStoreError;
use hapax_core::{OnUnknown, Tenant};
use http::Method;

use crate::{FingerprintOf, Hooks, Scope, Silent, Verdicts};

/// How requests with a key are treated.
#[derive(Clone)]
pub struct Settings {
    /// Whose claims they are.
    pub tenant: Tenant,
    /// Who is asking, among those: a key means something only together with its caller.
    pub scope: Scope,
    /// Which methods are keyed.
    pub methods: Vec<Method>,
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
            require_key: false,
            wait: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(86_400),
            on_unknown: OnUnknown::Refuse,
            on_store_error: OnStoreError::Closed,
            limit: 1024 * 1024,
            fingerprint: FingerprintOf::default(),
            verdicts: Verdicts::default(),
            hooks: Arc::new(Silent),
        }
    }
}

impl Settings {
    pub(crate) fn begin(&self, fingerprint: hapax_core::Fingerprint) -> Begin {
        Begin {
            fingerprint: Some(fingerprint),
            lease: self.lease,
            retention: self.retention,
            wait: self.wait,
            on_unknown: self.on_unknown,
        }
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
