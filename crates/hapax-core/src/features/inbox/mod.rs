//! The inbox: a message that is delivered twice has its effect once.
//!
//! Where the effect is in a SQL database, put the inbox into its transaction (`inbox` of the store's
//! crate): that alone is exactly once. This is the inbox for effects elsewhere: claim, act, settle.
//! An owner that goes away in the middle is taken over when its lease has run out, so that the
//! effect happens at least once, and once where the other side honours the message id or the fence.
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{inbox::{Handled, Inbox}, memory::MemoryStore};
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let inbox = Inbox::new(Arc::new(MemoryStore::default()));
//! let send = |_| async { Ok::<_, std::io::Error>("invoice 17") };
//!
//! let first = inbox.once("billing", "message-1", send).await?;
//! assert_eq!(first, Handled::First("invoice 17"));
//! // The broker delivers it again.
//! assert_eq!(inbox.once("billing", "message-1", send).await?, Handled::Duplicate);
//! // Another consumer has an inbox of its own.
//! assert!(matches!(inbox.once("mailing", "message-1", send).await?, Handled::First(_)));
//! # Ok(()) }
//! ```

mod once;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::counter;

pub use once::{Handled, OnceError, RunContext};

use crate::{
    ClaimRequest, Claimed, Claims, GiveBack, InvalidKey, Key, OnUnknown, Step, StoreError, Tenant,
    Ticket, Token, claim_retry, metric_names,
};

/// How long a message is remembered unless somebody says otherwise: longer than brokers redeliver.
pub const RETENTION: Duration = Duration::from_secs(30 * 86_400);

/// Why a message was neither received nor recognised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The token is not its owner's (any more): it was taken over, settled by another, given back or
    /// forgotten.
    #[error("the message is not yours (any more)")]
    Lost,
    /// The consumer or the message id cannot be one.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store gave no answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How a message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InboxConfig {
    /// How long its consumer is believed to be at work without renewal; then it is taken over.
    pub lease: Duration,
    /// How long it is recognised. Must exceed the longest time after which it may be delivered again.
    pub retention: Duration,
}

impl Default for InboxConfig {
    /// 30 seconds of lease, 30 days of retention.
    fn default() -> Self {
        Self { lease: Duration::from_secs(30), retention: RETENTION }
    }
}

/// The answer to [`Inbox::begin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// Act, then [`settle`](Inbox::settle) it or [`give it back`](Inbox::give_back).
    First {
        /// The proof.
        ticket: Ticket,
        /// 1, and one more for each time that it was given back or its owner went away.
        attempt: u32,
    },
    /// It had its effect before: acknowledge it to the broker and do nothing.
    Duplicate,
    /// Somebody is at it now: do not acknowledge it.
    InProgress {
        /// When its owner stops being believed alive, if it does not renew.
        retry_after: Duration,
    },
}

/// What an inbox inside the consumer's own transaction, of any SQL store, says about a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "only the first one may have an effect"]
pub enum MessageStatus {
    /// It is new: let it have its effect in this transaction, commit, then acknowledge it.
    First,
    /// It had its effect before: acknowledge it, and do nothing. Nothing was changed.
    Duplicate,
    /// Somebody is at it now, in a transaction that is still open or outside of one: do not
    /// acknowledge it, and let it be delivered again. Nothing was changed.
    Busy,
}

/// The inboxes of one tenant's consumers. A message's identity is (tenant, consumer, message id).
#[derive(Clone)]
pub struct Inbox {
    store: Arc<dyn Claims>,
    tenant: Tenant,
    receive: InboxConfig,
}

impl Inbox {
    /// Inboxes of the default tenant on this store.
    pub fn new(store: Arc<dyn Claims>) -> Self {
        Self { store, tenant: Tenant::default(), receive: InboxConfig::default() }
    }

    /// Inboxes of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// How [`Inbox::once`] receives.
    #[must_use]
    pub fn receive(mut self, receive: InboxConfig) -> Self {
        self.receive = receive;
        self
    }

    /// Asks whether a message is new, and takes it if so.
    pub async fn begin(
        &self,
        consumer: &str,
        message_id: &str,
        receive: &InboxConfig,
    ) -> Result<Received, InboxError> {
        self.begin_key(&Key::inbox(&self.tenant, consumer, message_id)?, receive).await
    }

    async fn begin_key(&self, key: &Key, receive: &InboxConfig) -> Result<Received, InboxError> {
        let ask = ClaimRequest::new(receive.lease)
            .retention(receive.retention)
            .on_unknown(OnUnknown::TakeOver);
        let answer =
            claim_retry::claim(&self.store, key, &ask, Duration::ZERO, GiveBack::Keep).await;
        let (result, received) = match answer.map(|(answer, _)| answer) {
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

    /// Says that the message had its effect: from now on it is a duplicate.
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
        ended("settled", claim_retry::retry_once_on_disconnect(settle).await)
    }

    /// Says that the message had no effect: whoever gets it next is the next attempt.
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
        ended("given_back", claim_retry::retry_once_on_disconnect(give_back).await)
    }
}

fn ended(how: &'static str, answer: Result<Step, StoreError>) -> Result<(), InboxError> {
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
