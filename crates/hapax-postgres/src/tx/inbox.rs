use hapax_core::Key;
use hapax_core::inbox::{InboxError, MessageStatus, RETENTION};

use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::claims::function::receive;

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
