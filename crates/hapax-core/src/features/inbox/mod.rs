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
use metrics::counter;

use crate::{
    ClaimRequest, Claimed, Claims, GiveBack, InvalidKey, Key, OnUnknown, Once, OnceError,
    RunContext, Step, StoreError, Tenant, Ticket, Token, claim_retry, metric_names,
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

/// How a message is received: by default 30 seconds of lease and 30 days of retention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxConfig {
    lease: Duration,
    retention: Duration,
}

impl Default for InboxConfig {
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), retention: RETENTION }
    }
}

impl InboxConfig {
    /// How long a consumer keeps a message without renewing; then it is taken over.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long a message is recognised; longer than the broker may deliver it again.
    #[must_use]
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
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

/// The inboxes of one tenant's consumers. A message is identified by (tenant, consumer, message id).
#[derive(Clone)]
pub struct Inbox {
    store: Arc<dyn Claims>,
    tenant: Tenant,
    config: InboxConfig,
}

impl Inbox {
    /// The inboxes of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self { store, tenant: Tenant::default(), config: InboxConfig::default() }
    }

    /// The inboxes of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// The configuration of [`Inbox::once`].
    #[must_use]
    pub fn config(mut self, config: InboxConfig) -> Self {
        self.config = config;
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
        let key = Key::inbox(&self.tenant, consumer, message_id)?;
        let (ticket, attempt) = match self.begin_key(&key, &self.config).await? {
            Received::First { ticket, attempt } => (ticket, attempt),
            Received::Duplicate => return Ok(Once::replayed(None)),
            Received::InProgress { retry_after } => {
                return Err(OnceError::InProgress { retry_after });
            }
        };
        let effect = effect(RunContext { fence: ticket.fence, attempt });
        let (store, lease) = (self.store.as_ref(), self.config.lease);
        match claim_retry::run_while_renewing(store, &key, &ticket.token, lease, effect).await {
            Ok(value) => {
                self.settle_key(&key, &ticket.token).await?;
                Ok(Once::first(Some(value)))
            }
            Err(error) => {
                // The effect's error matters more; where this fails too, the lease runs out.
                let _ = self.give_back_key(&key, &ticket.token).await;
                Err(OnceError::Failed(error))
            }
        }
    }

    /// Asks whether a message is new, and claims it if so.
    pub async fn begin(
        &self,
        consumer: &str,
        message_id: &str,
        config: &InboxConfig,
    ) -> Result<Received, InboxError> {
        self.begin_key(&Key::inbox(&self.tenant, consumer, message_id)?, config).await
    }

    async fn begin_key(&self, key: &Key, config: &InboxConfig) -> Result<Received, InboxError> {
        let request = ClaimRequest::new(config.lease)
            .retention(config.retention)
            .on_unknown(OnUnknown::TakeOver);
        let claim = claim_retry::claim(&self.store, key, &request, Duration::ZERO, GiveBack::Keep);
        let (result, received) = match claim.await.map(|(answer, _)| answer) {
            Ok(Claimed::Granted { ticket, attempt }) => {
                ("first", Ok(Received::First { ticket, attempt }))
            }
            Ok(Claimed::Settled { .. }) => ("duplicate", Ok(Received::Duplicate)),
            Ok(Claimed::Busy { lease_left }) => {
                ("in_progress", Ok(Received::InProgress { retry_after: lease_left }))
            }
            Ok(Claimed::Mismatch | Claimed::Unknown { .. }) => {
                let reason = "a message of the inbox has a fingerprint, and was not written by one";
                ("error", Err(StoreError::Corrupt { reason: reason.into() }.into()))
            }
            Err(error) => ("error", Err(error.into())),
        };
        counter!(metric_names::INBOX_BEGIN, "result" => result).increment(1);
        received
    }

    /// Settles a message after its effect: from now on it is a duplicate.
    pub async fn settle(
        &self,
        consumer: &str,
        message_id: &str,
        token: &Token,
    ) -> Result<(), InboxError> {
        self.settle_key(&Key::inbox(&self.tenant, consumer, message_id)?, token).await
    }

    async fn settle_key(&self, key: &Key, token: &Token) -> Result<(), InboxError> {
        let settle = || self.store.settle(key, token, Bytes::new());
        count_end("settled", claim_retry::retry_once_on_disconnect(settle).await)
    }

    /// Gives a message back that had no effect: its next delivery is the next attempt.
    pub async fn give_back(
        &self,
        consumer: &str,
        message_id: &str,
        token: &Token,
    ) -> Result<(), InboxError> {
        self.give_back_key(&Key::inbox(&self.tenant, consumer, message_id)?, token).await
    }

    async fn give_back_key(&self, key: &Key, token: &Token) -> Result<(), InboxError> {
        let give_back = || self.store.give_back(key, token, GiveBack::Keep);
        count_end("given_back", claim_retry::retry_once_on_disconnect(give_back).await)
    }
}

fn count_end(how: &'static str, answer: Result<Step, StoreError>) -> Result<(), InboxError> {
    let (label, result) = match answer {
        Ok(Step::Done(_)) => ("done", Ok(())),
        Ok(Step::Lost) => ("lost", Err(InboxError::Lost)),
        Err(error) => {
            metric_names::count_store_error(&error);
            ("error", Err(error.into()))
        }
    };
    counter!(metric_names::INBOX_END, "how" => how, "result" => label).increment(1);
    result
}
