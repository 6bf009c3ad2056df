use std::time::Duration;

use hapax_core::inbox::{InboxError, MessageStatus, RETENTION};
use hapax_core::{Key, Token};

use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::row::{self, KeyParams};

const RECEIVE: &str = include_str!("../sql/receive.sql");

/// The statement for a new message, which nearly every message is, at half the cost.
const RECEIVE_NEW: &str = include_str!("../sql/receive_new.sql");

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Says whether the consumer receives this message for the first time, and notes it for the
    /// [retention](Self::retention), which must exceed the longest time until a redelivery. A message
    /// that is delivered twice has its effect **exactly once**, because the note commits with the
    /// effect or not at all. Never waits for another transaction.
    ///
    /// This inbox is that of [`hapax_core::inbox`] and of the HTTP API. A message that was
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
) -> SqlResult<MessageStatus> {
    let (keys, retention, token) = (KeyParams::one(key), row::duration(retention), Token::random());
    let token = token.as_str().as_bytes();
    let params = keys.with(&[&retention, &token]);
    if !session.rows(RECEIVE_NEW, &params).await?.is_empty() {
        return Ok(MessageStatus::First);
    }
    loop {
        let rows = session.rows(RECEIVE, &params).await?;
        let answer = row::only(&rows)?;
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
