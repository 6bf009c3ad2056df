use hapax_core::StoreError;
use hapax_core::queue::{Enqueued, QueueItem, QueueName};

use crate::Transactional;

/// The outbox: what is to be sent is written down in the transaction that it tells about, and sent
/// if and only if that commits.
///
/// The item's id is made before and never changes, so that receivers can recognise it. A transaction
/// that runs again with the same item enqueues it once.
///
/// Call [`PostgresStore::arrived`](crate::PostgresStore::arrived) after the commit to have it sent at
/// once instead of at the relay's next look.
///
/// ```no_run
/// use hapax_core::{Tenant, queue::QueueItem};
/// use hapax_postgres::Outbox;
///
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::default();
/// let placed = QueueItem::new(&Tenant::default(), "orders", r#"{"n":1}"#).key("order-1");
///
/// let mut tx = client.transaction().await?;
/// tx.execute("INSERT INTO orders (id) VALUES ($1)", &[&"order-1"]).await?;
/// outbox.enqueue(&mut tx, &placed).await?;
/// tx.commit().await?; // the order and its message, or neither
/// # Ok(()) }
/// ```
///
/// Other languages write the row themselves, in their own transaction:
///
/// ```sql
/// INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}'::bytea)
/// ```
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: QueueName,
}

impl Default for Outbox {
    /// The queue `outbox`, which `hapax relay` drains.
    fn default() -> Self {
        Self::of(QueueName::outbox())
    }
}

impl Outbox {
    /// Another queue of the same table.
    pub fn of(queue: QueueName) -> Self {
        Self { queue }
    }

    /// Adds an item in the caller's transaction.
    ///
    /// # Errors
    /// As for [`InTransaction`](crate::InTransaction): after one the transaction is to be rolled back.
    pub async fn enqueue(
        &self,
        tx: &mut impl Transactional,
        item: &QueueItem,
    ) -> Result<Enqueued, StoreError> {
        let answers = self.enqueue_all(tx, std::slice::from_ref(item)).await?;
        Ok(answers.first().copied().unwrap_or(Enqueued::Duplicate))
    }

    /// Adds items in this order, in one statement; one answer each.
    ///
    /// # Errors
    /// As for [`Outbox::enqueue`].
    pub async fn enqueue_all(
        &self,
        tx: &mut impl Transactional,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        tx.hapax().enqueue(&self.queue, items).await
    }
}
