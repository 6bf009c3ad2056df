use hapax_core::StoreResult;
use hapax_core::queue::{Enqueued, QueueItem, QueueName};

use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::queue::enqueue::enqueue;

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Adds an item to the queue `outbox`, which `hapax relay` drains: it is delivered if, and only
    /// if, your transaction commits. The item's id was made with it and travels as the message id; a
    /// transaction that runs again with the same item enqueues it once. While another open transaction
    /// has enqueued the same item the answer is [`StoreError::Locked`](hapax_core::StoreError::Locked)
    /// within a moment, nothing was added, and your transaction can go on.
    ///
    /// Call [`PostgresStore::wake_queue`](crate::PostgresStore::wake_queue) after the commit to have
    /// it sent at once instead of at the relay's next poll.
    ///
    /// ```no_run
    /// use hapax_core::{Tenant, queue::QueueItem};
    /// use hapax_postgres::{HapaxTransaction, tokio_postgres::Client};
    ///
    /// # async fn example(client: &mut Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let placed = QueueItem::new(&Tenant::default(), "orders", r#"{"n":1}"#).key("order-1");
    /// let mut tx = client.transaction().await?;
    /// tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&"order-1"]).await?;
    /// tx.hapax().enqueue(&placed).await?;
    /// tx.commit().await?; // the order and its message, or neither
    /// # Ok(()) }
    /// ```
    ///
    /// Other languages insert the row themselves:
    ///
    /// ```sql
    /// INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}'::bytea)
    /// ```
    pub async fn enqueue(&mut self, item: &QueueItem) -> StoreResult<Enqueued> {
        let answers = self.enqueue_all(&QueueName::outbox(), std::slice::from_ref(item)).await?;
        Ok(answers.first().copied().unwrap_or(Enqueued::Duplicate))
    }

    /// Adds items to any queue, in this order and in one statement; one answer each.
    pub async fn enqueue_all(
        &mut self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> StoreResult<Vec<Enqueued>> {
        let all: Vec<_> = items.iter().map(|item| (queue, item)).collect();
        run_with_timeout(self.timeout, enqueue(self.tx, &all)).await
    }
}
