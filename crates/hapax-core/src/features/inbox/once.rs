use std::future::Future;
use std::time::Duration;

use super::{Inbox, InboxError, Received};
pub use crate::command::RunContext;
use crate::{Key, claim_retry};

/// What [`Inbox::once`] returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handled<T> {
    /// It was new, and this came of it.
    First(T),
    /// It had its effect before; nothing was done.
    Duplicate,
}

/// Why [`Inbox::once`] did not handle a message; in every case it should be delivered again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The effect itself failed.
    #[error("the message could not be handled")]
    Failed(#[source] E),
    /// Somebody else is at it now.
    #[error("the message is being handled; try again in {} ms", retry_after.as_millis())]
    InProgress {
        /// When its owner stops being believed alive, if it does not renew.
        retry_after: Duration,
    },
    /// It was not begun; or the effect took place, but its claim was lost meanwhile, or the store
    /// gave no answer.
    #[error(transparent)]
    Inbox(#[from] InboxError),
}

impl Inbox {
    /// Runs `effect` for a message that is new, and settles it; the lease is renewed while it runs.
    /// An effect that fails gives the message back. Pass [`RunContext::fence`] on to what you write to.
    pub async fn once<T, E, F>(
        &self,
        consumer: &str,
        message_id: &str,
        effect: impl FnOnce(RunContext) -> F,
    ) -> Result<Handled<T>, OnceError<E>>
    where
        F: Future<Output = Result<T, E>>,
    {
        let key = Key::inbox(&self.tenant, consumer, message_id).map_err(InboxError::from)?;
        let (ticket, attempt) = match self.begin_key(&key, &self.receive).await? {
            Received::First { ticket, attempt } => (ticket, attempt),
            Received::Duplicate => return Ok(Handled::Duplicate),
            Received::InProgress { retry_after } => {
                return Err(OnceError::InProgress { retry_after });
            }
        };
        let effect = effect(RunContext { fence: ticket.fence, attempt });
        let (store, lease) = (self.store.as_ref(), self.receive.lease);
        match claim_retry::run_while_renewing(store, &key, &ticket.token, lease, effect).await {
            Ok(value) => {
                self.settle_key(&key, &ticket.token).await?;
                Ok(Handled::First(value))
            }
            Err(error) => {
                // Where this fails too, the lease decides; the effect's error is what matters.
                let _ = self.give_back_key(&key, &ticket.token).await;
                Err(OnceError::Failed(error))
            }
        }
    }
}
