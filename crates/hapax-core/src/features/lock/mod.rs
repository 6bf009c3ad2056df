//! Processing locks: one holder at a time, released only by their owner.
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use hapax_core::{lock::{LockConfig, LockError, Locks}, memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), LockError> {
//! let locks = Locks::new(Arc::new(MemoryStore::default()));
//!
//! let guard = locks.acquire("processing:user:U1", &LockConfig::default()).await?;
//! // A double tap is told to wait.
//! assert!(locks.try_acquire("processing:user:U1", &LockConfig::default()).await?.is_none());
//! guard.release().await?;
//! assert!(locks.try_acquire("processing:user:U1", &LockConfig::default()).await?.is_some());
//! # Ok(()) }
//! ```

mod guard;

use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use tokio::time::Instant;

pub use guard::LockGuard;

use crate::activity::{self, Activity, ClaimActivity};
use crate::claim_retry::ClaimAnswer;
use crate::claims::ClaimState;
use crate::{
    ClaimRequest, Claimed, Claims, Fence, GiveBack, InvalidKey, Key, OnUnknown, Step, StoreError,
    StoreResult, Tenant, Ticket, Token, claim_retry, metric_names,
};

/// Why a lock was not taken, renewed or released.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another owner holds the lock.
    #[error("the lock is held for another {} ms", retry_after.as_millis())]
    Held {
        /// When the owner's lock runs out, unless it is renewed.
        retry_after: Duration,
    },
    /// The token does not own the lock (any more).
    #[error("the lock is not yours (any more)")]
    Lost,
    /// The name is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl LockError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Held { .. } => true,
            Self::Store(error) => error.is_retryable(),
            Self::Lost | Self::Invalid(_) => false,
        }
    }
}

/// Takes, renews and releases locks of one tenant.
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Claims>,
    tenant: Tenant,
    source: &'static str,
    label: Option<Arc<str>>,
}

/// How a lock is held: by default for five seconds, renewed for up to an hour, without waiting, and
/// closed where the store fails.
#[derive(Clone, Debug)]
pub struct LockConfig {
    ttl: Duration,
    wait: Duration,
    renew_for: Option<Duration>,
    throttle: bool,
    on_store_error: OnStoreError,
}

impl Default for LockConfig {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(5),
            wait: Duration::ZERO,
            renew_for: Some(Duration::from_secs(3600)),
            throttle: false,
            on_store_error: OnStoreError::Closed,
        }
    }
}

impl LockConfig {
    crate::builder_methods! {
        /// How long the lock lasts without renewal.
        ttl: Duration;
        /// How long to wait where another owner holds the lock.
        wait: Duration;
        /// Whether the lock is kept to its TTL even when the guard is released (a throttle window).
        throttle: bool;
        /// The policy for a store that fails.
        on_store_error: OnStoreError;
    }

    /// For how long in all the lock is renewed while the guard lives; `None` for never.
    #[must_use]
    pub fn renew_for(mut self, max: impl Into<Option<Duration>>) -> Self {
        self.renew_for = max.into();
        self
    }
}

/// The policy for a store that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// Fail: no work without a lock.
    Closed,
    /// Work without a lock, and count it.
    Open,
}

/// The result of [`Locks::look`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockView {
    /// Whether the lock is held.
    pub held: bool,
    /// The fence of the owner; `None` where a foreign writer holds the lock, or it was never held.
    pub fence: Option<Fence>,
    /// How long the lock lasts without renewal.
    pub expires_in: Option<Duration>,
}

impl Locks {
    /// Locks of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self { store, tenant: Tenant::default(), source: "library", label: None }
    }

    crate::builder_methods! {
        /// Locks of another tenant.
        tenant: Tenant;
        /// The `source_type` label of the metrics; never anything that identifies a person.
        source: &'static str;
    }

    /// Labels the owner of locks that are taken, for operators ([`Token::labelled`]).
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.label = Some(label.as_ref().into());
        self
    }

    /// Takes a lock, waiting up to `wait`, and leaves renewal and release to the caller.
    pub async fn take(
        &self,
        name: &str,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Ticket, LockError> {
        Ok(self.take_key(&Key::lock(&self.tenant, name)?, ttl, wait).await?.0)
    }

    async fn take_key(
        &self,
        key: &Key,
        ttl: Duration,
        wait: Duration,
    ) -> Result<(Ticket, Instant), LockError> {
        // A lock is a claim that may be taken over, and is forgotten, when its lease has run out.
        let request = ClaimRequest::labelled(ttl, self.label.as_deref());
        let request = request.on_unknown(OnUnknown::TakeOver);
        let begun = Instant::now();
        let answer = claim_retry::claim(&self.store, key, &request, wait, GiveBack::Forget).await;
        let took = Some(begun.elapsed());
        activity::record(Activity::Claim { key, answer: lock_activity(&answer), took });
        let count = |status| {
            counter!(metric_names::LOCK_ACQUIRE, "status" => status, "source_type" => self.source)
                .increment(1);
        };
        match answer {
            Ok(ClaimAnswer { claimed: Claimed::Granted { ticket, .. }, asked_at, .. }) => {
                count("acquired");
                Ok((ticket, asked_at))
            }
            Ok(ClaimAnswer { claimed: Claimed::Busy { lease_left }, .. }) => {
                count("held");
                counter!(metric_names::LOCK_MISS, "source_type" => self.source).increment(1);
                Err(LockError::Held { retry_after: lease_left })
            }
            Ok(ClaimAnswer { claimed: other, .. }) => {
                count("error");
                let reason = format!("a lock cannot be {}", label(&other));
                Err(StoreError::Internal { reason, source: None }.into())
            }
            Err(error) => {
                count("error");
                Err(error.into())
            }
        }
    }

    /// Makes a lock last `ttl` from now.
    pub async fn renew(
        &self,
        name: &str,
        token: &Token,
        ttl: Duration,
    ) -> Result<Fence, LockError> {
        let key = Key::lock(&self.tenant, name)?;
        match self.store.extend(&key, token, ttl).await? {
            Step::Done(fence) => {
                activity::record(Activity::Renewed(&key));
                Ok(fence)
            }
            Step::Lost => Err(LockError::Lost),
        }
    }

    /// Releases a lock that this token owns.
    pub async fn release(&self, name: &str, token: &Token) -> Result<(), LockError> {
        self.release_key(&Key::lock(&self.tenant, name)?, token).await
    }

    async fn release_key(&self, key: &Key, token: &Token) -> Result<(), LockError> {
        let answer = self.store.give_back(key, token, GiveBack::Forget).await;
        if let Ok(Step::Done(_)) = answer {
            activity::record(Activity::Settled(key));
        }
        claim_retry::count_step(answer, "released", LockError::Lost, |status| {
            counter!(metric_names::LOCK_RELEASE, "status" => status, "source_type" => self.source)
                .increment(1);
        })
    }

    /// Shows whether a lock is held, and for how long.
    pub async fn look(&self, name: &str) -> Result<LockView, LockError> {
        let key = Key::lock(&self.tenant, name)?;
        let free = LockView { held: false, fence: None, expires_in: None };
        Ok(self.store.look(&key).await?.map_or(free.clone(), |view| match view.state {
            ClaimState::Pending { lease_left } => {
                LockView { held: true, fence: view.fence, expires_in: Some(lease_left) }
            }
            _ => LockView { fence: view.fence, ..free },
        }))
    }

    /// Takes a lock, and holds it for as long as the guard lives.
    pub async fn acquire(&self, name: &str, config: &LockConfig) -> Result<LockGuard, LockError> {
        let key = Key::lock(&self.tenant, name)?;
        match self.take_key(&key, config.ttl, config.wait).await {
            Ok((ticket, since)) => {
                Ok(LockGuard::protected(self.clone(), key, ticket, since, config))
            }
            Err(LockError::Store(error)) if config.on_store_error == OnStoreError::Open => {
                tracing::warn!(reason = error.label(), "the store failed: working without a lock");
                counter!(metric_names::LOCK_ACQUIRE, "status" => "open", "source_type" => self.source)
                    .increment(1);
                Ok(LockGuard::unprotected())
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Locks::acquire`]; `None` where another owner holds the lock.
    pub async fn try_acquire(
        &self,
        name: &str,
        config: &LockConfig,
    ) -> Result<Option<LockGuard>, LockError> {
        match self.acquire(name, config).await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn lock_activity(answer: &StoreResult<ClaimAnswer>) -> ClaimActivity {
    match answer.as_ref().map(|answer| &answer.claimed) {
        Ok(Claimed::Granted { .. }) => ClaimActivity::FirstRun,
        Ok(Claimed::Busy { .. }) => ClaimActivity::Held,
        _ => ClaimActivity::Failed,
    }
}

fn label(answer: &Claimed) -> &'static str {
    match answer {
        Claimed::Settled { .. } => "settled",
        Claimed::Mismatch => "a mismatch",
        _ => "unknown",
    }
}
