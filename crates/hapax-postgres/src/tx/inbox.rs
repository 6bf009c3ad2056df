use std::time::Duration;

pub use hapax_core::inbox::MessageStatus;
use hapax_core::inbox::{InboxError, RETENTION};
use hapax_core::{Key, Tenant, Token};
use tokio_postgres::types::Type;

use crate::connect::session::{Params, Session, Sql};
use crate::error::{Failure, corrupt};
use crate::{Transactional, row};

const TYPES: &[Type] =
    &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::BYTEA];

const RECEIVE: Sql = Sql { text: include_str!("../sql/receive.sql"), types: TYPES };

/// What nearly every message needs, at half the price.
const RECEIVE_NEW: Sql = Sql { text: include_str!("../sql/receive_new.sql"), types: TYPES };

/// The inbox inside the consumer's own transaction: a message that is delivered twice has its effect
/// exactly once, because what says that it was received commits with the effect or not at all.
///
/// Its messages are those of [`hapax_core::inbox`]: what was received here is a duplicate there, and
/// the other way round.
///
/// ```no_run
/// use hapax_core::Tenant;
/// use hapax_postgres::{Inbox, MessageStatus};
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let inbox = Inbox::default();
/// let mut tx = client.transaction().await?;
/// match inbox.once(&mut tx, &Tenant::default(), "billing", "message-1").await? {
///     MessageStatus::First => {
///         tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&"order-1"]).await?;
///         tx.commit().await?; // then acknowledge the message
///     }
///     MessageStatus::Duplicate => {} // acknowledge it
///     MessageStatus::Busy => {}      // do not: it will come again
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    retention: Duration,
}

impl Default for Inbox {
    /// Messages are remembered for 30 days.
    fn default() -> Self {
        Self { retention: RETENTION }
    }
}

impl Inbox {
    /// How long a message is remembered; longer than it may be delivered again.
    #[must_use]
    pub fn retention(self, retention: Duration) -> Self {
        Self { retention }
    }

    /// Receives a message in the caller's transaction. Never waits for another transaction.
    ///
    /// # Errors
    /// [`InboxError::Invalid`] where the consumer or the id cannot be one, [`InboxError::Store`] as for
    /// [`InTransaction`](crate::InTransaction): after one the transaction is to be rolled back.
    pub async fn once(
        &self,
        tx: &mut impl Transactional,
        tenant: &Tenant,
        consumer: &str,
        message_id: &str,
    ) -> Result<MessageStatus, InboxError> {
        let key = Key::inbox(tenant, consumer, message_id)?;
        Ok(tx.hapax().receive(&key, self.retention).await?)
    }
}

pub(crate) async fn receive<S: Session>(
    session: &mut S,
    key: &Key,
    retention: Duration,
) -> Result<MessageStatus, Failure> {
    let (tenant, kind, digest) = (key.tenant().as_str(), key.kind().as_str(), row::digest(key));
    let (scope, name, retention) = (key.scope(), key.name(), row::duration(retention));
    let token = Token::random();
    let token = token.as_str().as_bytes();
    let params: Params<'_> = &[&tenant, &kind, &scope, &name, &digest, &retention, &token];
    if !session.rows(&RECEIVE_NEW, params).await?.is_empty() {
        return Ok(MessageStatus::First);
    }
    loop {
        let rows = session.rows(&RECEIVE, params).await?;
        let answer = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
        if answer.try_get("first")? {
            return Ok(MessageStatus::First);
        }
        match answer.try_get::<Option<i16>>("phase")? {
            Some(1) => return Ok(MessageStatus::Duplicate),
            Some(_) => return Ok(MessageStatus::Busy),
            None if !answer.try_get::<bool>("mine")? => return Ok(MessageStatus::Busy),
            // It was committed after this statement began: look again.
            None => {}
        }
    }
}
