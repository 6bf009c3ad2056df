//! The inbox of a consumer whose effect is in your database: **exactly once**, because a message and
//! its effect are in the same transaction.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::inbox::InboxError;
pub use hapax_core::inbox::MessageStatus;
use hapax_core::{ClaimRequest, Claimed, Clock, Key, OnUnknown, Step, StoreError, Tenant};
use rusqlite::Connection;

use super::{claim, settle};

/// Says whether the consumer sees this message for the first time, and notes it for `retention`, which
/// must exceed the longest time after which it may be delivered again
/// ([`RETENTION`](hapax_core::inbox::RETENTION)). Rolled back, it was never seen.
///
/// It is the same inbox as the one of [`hapax_core::inbox`] and of the API; what somebody there
/// began and left to its lease is taken over here.
///
/// ```
/// use hapax_core::{SystemClock, Tenant, inbox::RETENTION};
/// use hapax_sqlite::{migrate, rusqlite::{Connection, TransactionBehavior}};
/// use hapax_sqlite::tx::inbox::{self, MessageStatus};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("billing.db");
/// let mut billing = Connection::open(path)?;
/// migrate(&billing)?;
/// billing.execute_batch("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")?;
///
/// let mut receive = || -> Result<MessageStatus, Box<dyn std::error::Error>> {
///     let tx = billing.transaction_with_behavior(TransactionBehavior::Immediate)?;
///     let seen = inbox::once(
///         &tx, &SystemClock, &Tenant::default(), "billing", "message-1", RETENTION)?;
///     if seen == MessageStatus::First {
///         tx.execute("INSERT INTO invoices DEFAULT VALUES", [])?;
///         tx.commit()?;
///     }
///     Ok(seen)
/// };
/// assert_eq!(receive()?, MessageStatus::First);
/// assert_eq!(receive()?, MessageStatus::Duplicate);
/// let invoices: i64 = billing.query_row("SELECT count(*) FROM invoices", [], |row| row.get(0))?;
/// assert_eq!(invoices, 1);
/// # Ok(()) }
/// ```
pub fn once(
    connection: &Connection,
    clock: &dyn Clock,
    tenant: &Tenant,
    consumer: &str,
    message_id: &str,
    retention: Duration,
) -> Result<MessageStatus, InboxError> {
    let key = Key::inbox(tenant, consumer, message_id)?;
    // The lease matters to nobody: the claim is settled before anybody else can see it.
    let ask = ClaimRequest::new(retention).retention(retention).on_unknown(OnUnknown::TakeOver);
    let ticket = match claim(connection, clock, &key, &ask)? {
        Claimed::Granted { ticket, .. } => ticket,
        Claimed::Settled { .. } => return Ok(MessageStatus::Duplicate),
        Claimed::Busy { .. } => return Ok(MessageStatus::Busy),
        Claimed::Mismatch | Claimed::Unknown { .. } => {
            let reason = "a message of the inbox has a fingerprint, and was not written by one";
            return Err(StoreError::Corrupt { reason: reason.into() }.into());
        }
    };
    match settle(connection, clock, &key, &ticket.token, &Bytes::new())? {
        Step::Done(_) => Ok(MessageStatus::First),
        Step::Lost => Err(InboxError::Lost),
    }
}
