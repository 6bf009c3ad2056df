//! The transactional outbox: what is enqueued here is delivered if, and only if, your transaction
//! commits.
//!
//! `hapax relay`, or anybody who leases from the queue, hands it on. From another language the same
//! is one statement:
//!
//! ```sql
//! INSERT INTO hapax_outbox (topic, key, payload) VALUES ('orders', 'order-1', '{"n":1}')
//! ```
//!
//! In Rust:
//!
//! ```
//! use hapax_core::{SystemClock, Tenant, queue::QueueItem};
//! use hapax_sqlite::{migrate, rusqlite::{Connection, TransactionBehavior}, tx};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("shop.db");
//! let mut shop = Connection::open(path)?;
//! migrate(&shop)?;
//! shop.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")?;
//!
//! let order = shop.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! order.execute("INSERT INTO orders (item) VALUES ('bento')", [])?;
//! let message = QueueItem::new(&Tenant::default(), "orders", r#"{"n":1}"#).key("order-1");
//! tx::outbox::enqueue(&order, &SystemClock, &message)?;
//! order.commit()?;
//! # Ok(()) }
//! ```
//!
//! Relays in other tasks and processes notice your commit within some tens of milliseconds.

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Clock, StoreError};
use rusqlite::Connection;

use super::lock::lock;
use super::savepoint::whole;
use crate::queue;

/// Adds an item to the queue `outbox`. Its id was made with it, and travels as the message id
/// wherever it goes.
pub fn enqueue(
    connection: &Connection,
    clock: &dyn Clock,
    item: &QueueItem,
) -> Result<Enqueued, StoreError> {
    let answers = enqueue_all(connection, clock, &QueueName::outbox(), std::slice::from_ref(item));
    answers.map(|answers| answers[0])
}

/// Adds items to any queue, in this order; one answer each. All of them, or none after an error.
pub fn enqueue_all(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    items: &[QueueItem],
) -> Result<Vec<Enqueued>, StoreError> {
    lock(connection)?;
    whole(connection, || queue::enqueue(connection, clock, queue, items))
}
