//! Adding items to a queue.

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Clock, StoreError, Timestamp};
use rusqlite::{Connection, params};

use super::item;
use crate::row::{execute, to_i64};

/// The caller holds the write lock, and rolls back if this fails.
pub(crate) fn enqueue(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    items: &[QueueItem],
) -> Result<Vec<Enqueued>, StoreError> {
    let now = clock.now();
    items.iter().map(|item| add(connection, queue, item, now)).collect()
}

fn add(
    connection: &Connection,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> Result<Enqueued, StoreError> {
    let added = item::insert(connection, queue, item, now)?
        || forget_done(connection, queue, item, now)?
            && item::insert(connection, queue, item, now)?;
    Ok(if added { Enqueued::Accepted } else { Enqueued::Duplicate })
}

/// Deletes a done item of the same id whose retention is over; whether there was one.
fn forget_done(
    connection: &Connection,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> Result<bool, StoreError> {
    execute(
        connection,
        "DELETE FROM hapax_outbox WHERE queue = ?1 AND id = ?2 AND state = 6 AND forget_at <= ?3",
        params![queue.as_str(), item.id.to_string(), to_i64(now.0)],
    )
    .map(|deleted| deleted == 1)
}
