use std::time::Duration;

use bytes::Bytes;
use hapax_core::inbox::{InboxError, MessageStatus, RETENTION};
use hapax_core::{ClaimRequest, Claimed, Key, OnUnknown, Step, StoreError, Ticket};

use super::SqliteTransaction;

impl SqliteTransaction<'_> {
    /// Says whether the consumer receives this message for the first time, and notes it for the
    /// [retention](Self::retention), which must exceed the longest time until a redelivery. A message
    /// that is delivered twice has its effect **exactly once**, because the note commits with the
    /// effect or not at all. Never waits for another transaction.
    ///
    /// This inbox is that of [`hapax_core::inbox`] and of the HTTP API. A message that was
    /// begun there and whose lease has run out is taken over.
    ///
    /// ```
    /// use hapax_core::inbox::MessageStatus;
    /// use hapax_sqlite::{HapaxTransaction, migrate, rusqlite::Connection};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("billing.db");
    /// let mut billing = Connection::open(path)?;
    /// migrate(&billing)?;
    /// billing.execute_batch("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")?;
    ///
    /// let mut receive = || -> Result<MessageStatus, Box<dyn std::error::Error>> {
    ///     let tx = billing.transaction()?;
    ///     let seen = tx.hapax().receive("billing", "message-1")?;
    ///     if seen == MessageStatus::First {
    ///         tx.execute("INSERT INTO invoices DEFAULT VALUES", [])?;
    ///         tx.commit()?;
    ///     }
    ///     Ok(seen)
    /// };
    /// assert_eq!(receive()?, MessageStatus::First);
    /// assert_eq!(receive()?, MessageStatus::Duplicate);
    /// # Ok(()) }
    /// ```
    pub fn receive(&self, consumer: &str, message_id: &str) -> Result<MessageStatus, InboxError> {
        let key = Key::inbox(&self.tenant, consumer, message_id)?;
        let ask = claim_request(self.retention);
        let ticket = match first_ticket(self.claim(&key, &ask)?)? {
            Ok(ticket) => ticket,
            Err(status) => return Ok(status),
        };
        match self.settle(&key, &ticket.token, Bytes::new())? {
            Step::Done(_) => Ok(MessageStatus::First),
            Step::Lost => Err(InboxError::Lost),
        }
    }
}

/// The claim of a message.
pub(super) fn claim_request(retention: Option<Duration>) -> ClaimRequest {
    let retention = retention.unwrap_or(RETENTION);
    // The lease does not matter: the claim is settled before any other transaction sees it.
    ClaimRequest::new(retention).retention(retention).on_unknown(OnUnknown::TakeOver)
}

/// The ticket of a message that is received for the first time, or the status of another one.
pub(super) fn first_ticket(claimed: Claimed) -> Result<Result<Ticket, MessageStatus>, InboxError> {
    match claimed {
        Claimed::Granted { ticket, .. } => Ok(Ok(ticket)),
        Claimed::Settled { .. } => Ok(Err(MessageStatus::Duplicate)),
        Claimed::Busy { .. } => Ok(Err(MessageStatus::Busy)),
        Claimed::Mismatch | Claimed::Unknown { .. } => {
            let reason = "a message of the inbox has a fingerprint, and was not written by one";
            Err(StoreError::Corrupt { reason: reason.into() }.into())
        }
    }
}
