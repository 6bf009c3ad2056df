use std::fmt;

use metrics::{counter, histogram};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{LockConfig, LockError, Locks};
use crate::claim_retry::RecordRenewals;
use crate::{Fence, Key, Ticket, Token, claim_retry, deadline_after, metric_names};

/// A held lock. It is renewed in the background as [`LockConfig::renew_for`] says.
///
/// Release it with [`LockGuard::release`], which tells whether it was still owned. A dropped guard is
/// released in the background where a runtime is running, and otherwise by its TTL.
#[must_use = "a dropped guard releases its lock"]
pub struct LockGuard(Option<HeldLock>);

struct HeldLock {
    locks: Locks,
    key: Key,
    ticket: Ticket,
    throttle: bool,
    since: Instant,
    alive: watch::Receiver<bool>,
    renewal: JoinHandle<()>,
}

impl LockGuard {
    pub(super) fn protected(
        locks: Locks,
        key: Key,
        ticket: Ticket,
        since: Instant,
        config: &LockConfig,
    ) -> Self {
        let (tell, alive) = watch::channel(true);
        let (store, name) = (locks.store.clone(), key.clone());
        let (token, ttl) = (ticket.token.clone(), config.ttl);
        // A throttle window is never renewed, however long the work takes.
        let renew_for = config.renew_for.filter(|_| !config.throttle);
        let renewal = tokio::spawn(async move {
            match renew_for {
                Some(longest) => {
                    let until = Some(deadline_after(since, longest));
                    let (store, record) = (store.as_ref(), RecordRenewals::Yes);
                    claim_retry::renew_until_lost(store, &name, &token, ttl, since, until, record)
                        .await;
                }
                None => tokio::time::sleep_until(deadline_after(since, ttl)).await,
            }
            let _ = tell.send(false);
        });
        Self(Some(HeldLock {
            locks,
            key,
            ticket,
            throttle: config.throttle,
            since,
            alive,
            renewal,
        }))
    }

    pub(super) fn unprotected() -> Self {
        Self(None)
    }

    /// Whether there is a lock at all: false where the store failed and the policy was open.
    pub fn is_protected(&self) -> bool {
        self.0.is_some()
    }

    /// The fence; pass it to every system that is written to under the lock.
    pub fn fence(&self) -> Option<Fence> {
        self.0.as_ref().map(|held| held.ticket.fence)
    }

    /// The token of this lock, for another process that continues with it.
    pub fn token(&self) -> Option<&Token> {
        self.0.as_ref().map(|held| &held.ticket.token)
    }

    /// Completes when the lock was lost, or could not be renewed. Select on it beside the work.
    pub async fn lost(&self) {
        match &self.0 {
            Some(held) => {
                let mut alive = held.alive.clone();
                // A renewal task that ended without a message counts as a lost lock.
                let _ = alive.wait_for(|alive| !alive).await;
            }
            None => std::future::pending().await,
        }
    }

    /// Releases the lock; [`LockError::Lost`] where it was not owned any more.
    pub async fn release(mut self) -> Result<(), LockError> {
        match self.0.take() {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }
}

impl HeldLock {
    async fn release(self) -> Result<(), LockError> {
        self.renewal.abort();
        let source = self.locks.source;
        histogram!(metric_names::LOCK_HELD, "event_type" => source).record(self.since.elapsed());
        if self.throttle {
            counter!(metric_names::LOCK_RELEASE, "status" => "kept", "source_type" => source)
                .increment(1);
            return Ok(());
        }
        self.locks.release_key(&self.key, &self.ticket.token).await
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if let Some(held) = self.0.take() {
            held.renewal.abort();
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(held.release());
            }
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").field("fence", &self.fence()).finish_non_exhaustive()
    }
}
