//! Processing locks: one at a time, released by their owner alone.
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

use crate::claims::ClaimState;
use crate::{
    ClaimRequest, Claimed, Claims, Fence, GiveBack, InvalidKey, Key, OnUnknown, Step, StoreError,
    Tenant, Ticket, Token, claim_retry, metric_names,
};

/// Why there is no lock.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else has it.
    #[error("the lock is held for another {} ms", retry_after.as_millis())]
    Held {
        /// When it is free at the latest, if its owner does not renew it.
        retry_after: Duration,
    },
    /// It was yours and is not any more: it ran out, or the token is not its owner's.
    #[error("the lock is not yours (any more)")]
    Lost,
    /// The name cannot be one.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Takes, renews and releases locks of one tenant.
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Claims>,
    tenant: Tenant,
    source: &'static str,
}

/// How a lock is held.
#[derive(Clone, Debug)]
pub struct LockConfig {
    /// How long it lasts without renewal.
    pub ttl: Duration,
    /// How long to wait where it is held.
    pub wait: Duration,
    /// Renew it in the background while the guard lives, up to this long in all; `None` never.
    pub renew_for: Option<Duration>,
    /// Keep it to its TTL even when the guard is released: a throttle window.
    pub throttle: bool,
    /// What to do where the store fails.
    pub on_store_error: OnStoreError,
}

impl Default for LockConfig {
    /// Five seconds, renewed for up to an hour, no waiting, closed where the store fails.
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

/// What to do where the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnStoreError {
    /// No answer, no work.
    Closed,
    /// Work without protection, and count it.
    Open,
}

/// A lock that was taken without a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// Whether somebody has it.
    pub held: bool,
    /// The fence of its owner; `None` where it is free or a foreign writer holds it.
    pub fence: Option<Fence>,
    /// How long it lasts without renewal.
    pub expires_in: Option<Duration>,
}

impl Locks {
    /// Locks of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self { store, tenant: Tenant::default(), source: "library" }
    }

    /// Locks of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// The `source_type` label of the metrics; never anything that identifies a person.
    #[must_use]
    pub fn source(mut self, source: &'static str) -> Self {
        self.source = source;
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
        // Taking over what ran out, and forgetting it with its lease, is what makes it a lock.
        let ask = ClaimRequest::new(ttl).on_unknown(OnUnknown::TakeOver);
        let answer = claim_retry::claim(&self.store, key, &ask, wait, GiveBack::Forget).await;
        let count = |status| {
            counter!(metric_names::LOCK_ACQUIRE, "status" => status, "source_type" => self.source)
                .increment(1);
        };
        match answer {
            Ok((Claimed::Granted { ticket, .. }, asked_at)) => {
                count("acquired");
                Ok((ticket, asked_at))
            }
            Ok((Claimed::Busy { lease_left }, _)) => {
                count("held");
                counter!(metric_names::LOCK_MISS, "source_type" => self.source).increment(1);
                Err(LockError::Held { retry_after: lease_left })
            }
            Ok((other, _)) => {
                count("error");
                let reason = format!("a lock cannot be {}", word(&other));
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
            Step::Done(fence) => Ok(fence),
            Step::Lost => Err(LockError::Lost),
        }
    }

    /// Releases a lock, if it is still the token's.
    pub async fn release(&self, name: &str, token: &Token) -> Result<(), LockError> {
        self.release_key(&Key::lock(&self.tenant, name)?, token).await
    }

    async fn release_key(&self, key: &Key, token: &Token) -> Result<(), LockError> {
        let answer = self.store.give_back(key, token, GiveBack::Forget).await;
        let (status, result) = match answer {
            Ok(Step::Done(_)) => ("released", Ok(())),
            Ok(Step::Lost) => ("lost", Err(LockError::Lost)),
            Err(error) => {
                metric_names::count_store_error(&error);
                ("error", Err(error.into()))
            }
        };
        counter!(metric_names::LOCK_RELEASE, "status" => status, "source_type" => self.source)
            .increment(1);
        result
    }

    /// Whether a lock is held, and for how long.
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

    /// Takes a lock and holds it as long as the guard lives.
    pub async fn acquire(&self, name: &str, hold: &LockConfig) -> Result<LockGuard, LockError> {
        let key = Key::lock(&self.tenant, name)?;
        match self.take_key(&key, hold.ttl, hold.wait).await {
            Ok((ticket, since)) => Ok(LockGuard::protected(self.clone(), key, ticket, since, hold)),
            Err(LockError::Store(error)) if hold.on_store_error == OnStoreError::Open => {
                tracing::warn!(reason = error.label(), "the store failed: working without a lock");
                counter!(metric_names::LOCK_ACQUIRE, "status" => "open", "source_type" => self.source)
                    .increment(1);
                Ok(LockGuard::unprotected())
            }
            Err(error) => Err(error),
        }
    }

    /// As [`Locks::acquire`]; `None` where somebody else has it.
    pub async fn try_acquire(
        &self,
        name: &str,
        hold: &LockConfig,
    ) -> Result<Option<LockGuard>, LockError> {
        match self.acquire(name, hold).await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Held { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn word(answer: &Claimed) -> &'static str {
    match answer {
        Claimed::Settled { .. } => "settled",
        Claimed::Mismatch => "a mismatch",
        _ => "unknown",
    }
}
