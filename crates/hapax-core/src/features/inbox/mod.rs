//! The inbox: a message that is delivered twice has its effect once.
//!
//! Where the effect is in a SQL database, put the inbox into its transaction (`tx.hapax()` of the
//! store's crate): only that is exactly once. This inbox is for effects elsewhere: claim, act, settle.
//! The claim of an owner that disappears in the middle is taken over when its lease has run out, so
//! the effect happens at least once, and once where the other side honours the message id or fence.
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{inbox::Inbox, memory::MemoryStore, Once};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = Inbox::new(Arc::new(MemoryStore::default()));
//! let send = |_| async { Ok::<_, std::io::Error>("invoice 17") };
//!
//! let first = inbox.once("billing", "message-1", send).await?;
//! assert_eq!(first, Once::first(Some("invoice 17")));
//! // The broker delivers the message again.
//! assert!(inbox.once("billing", "message-1", send).await?.replayed);
//! // Another consumer has its own inbox.
//! assert!(!inbox.once("mailing", "message-1", send).await?.replayed);
//! # Ok(()) }
//! ```

#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::effect_claims::{ClaimMetrics, EffectClaims};
use crate::{
    ClaimRequest, Claimed, Claims, Fence, InvalidKey, Key, OnUnknown, Once, OnceError, RunContext,
    StoreError, Tenant, Ticket, Token, metric_names,
};

/// The default retention of messages: longer than brokers redeliver.
pub const RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// Why a message was not received, settled or given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The token does not own the message (any more): the message was taken over, settled, given
    /// back or forgotten.
    #[error("the message is not yours (any more)")]
    Lost,
    /// The consumer or the message id is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InboxError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_retryable())
    }
}

impl<E> From<InboxError> for OnceError<E> {
    fn from(error: InboxError) -> Self {
        match error {
            InboxError::Lost => Self::Lost,
            InboxError::Invalid(error) => Self::Invalid(error),
            InboxError::Store(error) => Self::Store(error),
        }
    }
}

crate::config! {
    /// How a message is received: by default 30 seconds of lease and 30 days of retention.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct InboxConfig {
        /// How long a consumer keeps a message without renewing; then it is taken over.
        lease: Duration = Duration::from_secs(30),
        /// How long a message is recognised; longer than the broker may deliver it again.
        retention: Duration = RETENTION,
    }
}

/// The answer to [`Inbox::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Act, then [`settle`](Inbox::settle) the message or [give it back](Inbox::give_back).
    First {
        /// The proof of ownership.
        ticket: Ticket,
        /// 1 for the first attempt; one more after each give-back or takeover.
        attempt: u32,
    },
    /// The message had its effect before: acknowledge it to the broker and do nothing.
    Duplicate,
    /// Another consumer is handling the message: do not acknowledge it.
    InProgress {
        /// When the owner's lease runs out, unless it is renewed.
        retry_after: Duration,
    },
}

/// The answer of an inbox inside the consumer's own SQL transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only the first one may have an effect"]
pub enum MessageStatus {
    /// The message is new: act in this transaction, commit, then acknowledge it.
    First,
    /// The message had its effect before: acknowledge it. Nothing was changed.
    Duplicate,
    /// Another transaction or consumer is handling the message: do not acknowledge it, so that it is
    /// delivered again. Nothing was changed.
    Busy,
}

const METRICS: ClaimMetrics = ClaimMetrics {
    begin: metric_names::INBOX_BEGIN,
    begun: |claimed| match claimed {
        Claimed::Granted { .. } => "first",
        Claimed::Settled { .. } => "duplicate",
        Claimed::Busy { .. } => "in_progress",
        Claimed::Mismatch | Claimed::Unknown { .. } => "error",
    },
    end: metric_names::INBOX_END,
    settled: "settled",
    given_back: "given_back",
};

/// The inboxes of one tenant's consumers. A message is identified by (tenant, consumer, message id).
#[derive(Clone)]
pub struct Inbox {
    claims: EffectClaims,
    tenant: Tenant,
    config: InboxConfig,
}

impl Inbox {
    /// The inboxes of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        let claims = EffectClaims::new(store, &METRICS);
        Self { claims, tenant: Tenant::default(), config: InboxConfig::default() }
    }

    crate::builder_methods! {
        /// The inboxes of another tenant.
        tenant: Tenant;
        /// The configuration of [`Inbox::once`].
        config: InboxConfig;
    }

    /// Labels the owner of messages that are received, for operators ([`Token::labelled`]).
    #[must_use]
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.claims.label = Some(label.as_ref().into());
        self
    }

    /// Runs `effect` for a new message, and settles the message; the lease is renewed meanwhile. A
    /// duplicate gives no value. An effect that fails gives the message back. After every error the
    /// message should be delivered again. Pass [`RunContext::fence`] on to what the effect writes to.
    pub async fn once<T, E, F>(
        &self,
        consumer: &str,
        message_id: &str,
        effect: impl FnOnce(RunContext) -> F,
    ) -> Result<Once<Option<T>>, OnceError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let (ticket, attempt) = match self.begin(consumer, message_id, &self.config).await? {
            Received::First { ticket, attempt } => (ticket, attempt),
            Received::Duplicate => return Ok(Once::replayed(None)),
            Received::InProgress { retry_after } => {
                return Err(OnceError::InProgress { retry_after });
            }
        };
        let key = self.key(consumer, message_id)?;
        let effect = effect(RunContext { fence: ticket.fence, attempt });
        let run = self.claims.run(&key, &ticket, self.config.lease, effect, |_| Ok(Bytes::new()));
        Ok(Once::first(Some(run.await?)))
    }

    fn key(&self, consumer: &str, message_id: &str) -> Result<Key, InvalidKey> {
        Key::inbox(&self.tenant, consumer, message_id)
    }

    /// Asks whether a message is new, and claims it if so.
    pub async fn begin(
        &self,
        consumer: &str,
        message_id: &str,
        config: &InboxConfig,
    ) -> Result<Received, InboxError> {
        let key = self.key(consumer, message_id)?;
        let request = ClaimRequest::labelled(config.lease, self.claims.label.as_deref())
            .retention(config.retention)
            .on_unknown(OnUnknown::TakeOver);
        match self.claims.claim(&key, &request, Duration::ZERO).await? {
            Claimed::Granted { ticket, attempt } => Ok(Received::First { ticket, attempt }),
            Claimed::Settled { .. } => Ok(Received::Duplicate),
            Claimed::Busy { lease_left } => Ok(Received::InProgress { retry_after: lease_left }),
            Claimed::Mismatch | Claimed::Unknown { .. } => {
                let reason = "a message of the inbox has a fingerprint, and was not written by one";
                Err(StoreError::Corrupt { reason: reason.into() }.into())
            }
        }
    }

    /// Makes a received message last `lease` from now, and returns its fence. Renew a message whose
    /// effect may take longer than its lease; [`Inbox::once`] does so by itself.
    pub async fn renew(
        &self,
        consumer: &str,
        message_id: &str,
        token: &Token,
        lease: Duration,
    ) -> Result<Fence, InboxError> {
        self.claims.renew(&self.key(consumer, message_id)?, token, lease, InboxError::Lost).await
    }

    /// Settles a message after its effect: from now on it is a duplicate.
    pub async fn settle(
        &self,
        consumer: &str,
        message_id: &str,
        token: &Token,
    ) -> Result<(), InboxError> {
        let key = self.key(consumer, message_id)?;
        self.claims.settle(&key, token, Bytes::new(), InboxError::Lost).await
    }

    /// Gives a message back that had no effect: its next delivery is the next attempt.
    pub async fn give_back(
        &self,
        consumer: &str,
        message_id: &str,
        token: &Token,
    ) -> Result<(), InboxError> {
        self.claims.give_back(&self.key(consumer, message_id)?, token, InboxError::Lost).await
    }
}
