use std::time::Duration;

use hapax_core::inbox::{InboxError, MessageStatus, RETENTION};
use hapax_core::{Key, Token};
use tokio_postgres::types::Type;

use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::connect::session::{Params, Sql, SqlSession};
use crate::error::{StatementError, corrupt};
use crate::row;

const TYPES: &[Type] =
    &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::BYTEA];

const RECEIVE: Sql = Sql { text: include_str!("../sql/receive.sql"), types: TYPES };

/// The statement for a new message, which nearly every message is, at half the cost.
const RECEIVE_NEW: Sql = Sql { text: include_str!("../sql/receive_new.sql"), types: TYPES };

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Says whether the consumer receives this message for the first time, and notes it for the
    /// [retention](Self::retention), which must exceed the longest time until a redelivery. A message
    /// that is delivered twice has its effect **exactly once**, because the note commits with the
    /// effect or not at all. Never waits for another transaction.
    ///
    /// It is the same inbox as that of [`hapax_core::inbox`] and of the HTTP API. A message that was
    /// begun there and whose lease has run out is taken over.
    ///
    /// ```no_run
    /// use hapax_core::inbox::MessageStatus;
    /// use hapax_postgres::{HapaxTransaction, tokio_postgres::Client};
    ///
    /// # async fn example(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = client.transaction().await?;
    /// match tx.hapax().receive("billing", "message-1").await? {
    ///     MessageStatus::First => {
    ///         tx.execute("INSERT INTO invoices (order_id) VALUES ($1)", &[&"order-1"]).await?;
    ///         tx.commit().await?; // then acknowledge the message
    ///     }
    ///     MessageStatus::Duplicate => {} // acknowledge the message
    ///     MessageStatus::Busy => {}      // do not acknowledge: it will be delivered again
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn receive(
        &mut self,
        consumer: &str,
        message_id: &str,
    ) -> Result<MessageStatus, InboxError> {
        let key = Key::inbox(&self.tenant, consumer, message_id)?;
        let retention = self.retention.unwrap_or(RETENTION);
        Ok(run_with_timeout(self.timeout, receive(self.tx, &key, retention)).await?)
    }
}

async fn receive<S: SqlSession>(
    session: &mut S,
    key: &Key,
    retention: Duration,
) -> Result<MessageStatus, StatementError> {
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
            // The message was committed after this statement began: read again.
            None => {}
        }
    }
}
