use hapax_core::StoreResult;
use hapax_core::queue::{Enqueued, QueueItem, QueueName};

use super::SqliteTransaction;
use super::lock::lock;
use super::savepoint::in_savepoint;
use crate::queue;

impl SqliteTransaction<'_> {
    /// Adds an item to the queue `outbox`, which `hapax relay` drains: it is delivered if, and only
    /// if, your transaction commits. The item's id was made with it and travels as the message id; a
    /// transaction that runs again with the same item enqueues it once.
    ///
    /// ```
    /// use hapax_core::{Tenant, queue::QueueItem};
    /// use hapax_sqlite::{HapaxTransaction, migrate, rusqlite::Connection};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let path = folder.path().join("shop.db");
    /// let mut shop = Connection::open(path)?;
    /// migrate(&shop)?;
    /// shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;
    ///
    /// let tx = shop.transaction()?;
    /// tx.execute("INSERT INTO orders (item) VALUES ('bento')", [])?;
    /// tx.hapax().enqueue(&QueueItem::new(&Tenant::default(), "orders", r#"{"n":1}"#).key("order-1"))?;
    /// tx.commit()?; // the order and its message, or neither
    /// # Ok(()) }
    /// ```
    ///
    /// Other languages insert the row themselves:
    ///
    /// ```sql
    /// INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}')
    /// ```
    pub fn enqueue(&self, item: &QueueItem) -> StoreResult<Enqueued> {
        let answers = self.enqueue_all(&QueueName::outbox(), std::slice::from_ref(item))?;
        Ok(answers[0])
    }

    /// Adds items to any queue, in this order; one answer each. All of them, or none after an error.
    pub fn enqueue_all(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> StoreResult<Vec<Enqueued>> {
        lock(self.session.connection)?;
        in_savepoint(self.session.connection, || queue::enqueue(self.session, queue, items))
    }
}
