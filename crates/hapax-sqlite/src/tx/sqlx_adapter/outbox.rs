use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{StoreResult, Timestamp};

use super::SqlxTransaction;
use super::session::SqlxParam;
use crate::queue::{FORGET_ITEM, INSERT_ITEM, ItemColumns};

impl SqlxTransaction<'_> {
    /// Adds an item to the queue `outbox`, which `hapax relay` drains: it is delivered if, and only
    /// if, your transaction commits. The item's id was made with it and travels as the message id; a
    /// transaction that runs again with the same item enqueues it once.
    pub async fn enqueue(&mut self, item: &QueueItem) -> StoreResult<Enqueued> {
        let answers = self.enqueue_all(&QueueName::outbox(), std::slice::from_ref(item)).await?;
        Ok(answers[0])
    }

    /// Adds items to any queue, in this order; one answer each. All of them, or none after an error.
    pub async fn enqueue_all(
        &mut self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> StoreResult<Vec<Enqueued>> {
        self.session.lock().await?;
        self.session.begin_savepoint().await?;
        let done = self.add_items(queue, items).await;
        self.session.end_savepoint(done).await
    }

    async fn add_items(
        &mut self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> StoreResult<Vec<Enqueued>> {
        let now = self.session.now(true).await?;
        let mut answers = Vec::with_capacity(items.len());
        for item in items {
            answers.push(self.add_item(queue, item, now).await?);
        }
        Ok(answers)
    }

    async fn add_item(
        &mut self,
        queue: &QueueName,
        item: &QueueItem,
        now: Timestamp,
    ) -> StoreResult<Enqueued> {
        let columns = ItemColumns::of(item, now, self.session.wall())?;
        let (queue, id) = (SqlxParam::Text(queue.as_str()), SqlxParam::Text(&columns.id));
        let insert = [
            queue,
            id,
            SqlxParam::Text(item.tenant.as_str()),
            SqlxParam::Text(&item.topic),
            SqlxParam::text_or_null(item.key.as_deref()),
            SqlxParam::Bytes(&item.payload),
            SqlxParam::text_or_null(item.content_type.as_deref()),
            SqlxParam::text_or_null(columns.headers.as_deref()),
            SqlxParam::number_or_null(columns.deliver_after),
            SqlxParam::Number(columns.created_at),
        ];
        let session = &mut self.session;
        let mut added = session.execute(INSERT_ITEM, &insert).await? == 1;
        // An item with the same id whose retention is over does not count.
        if !added && session.execute(FORGET_ITEM, &[queue, id, now.0.into()]).await? == 1 {
            added = session.execute(INSERT_ITEM, &insert).await? == 1;
        }
        Ok(if added { Enqueued::Accepted } else { Enqueued::Duplicate })
    }
}
