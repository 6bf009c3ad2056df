use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{Clock, StoreError, Timestamp};
use rusqlite::{Connection, params};

use super::item;
use crate::error::fault;
use crate::row::stored;

/// Adds the items. The caller holds the write lock, and rolls back where this fails.
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

/// A done item that is not remembered any more is in nobody's way; whether it was one.
fn forget_done(
    connection: &Connection,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> Result<bool, StoreError> {
    connection
        .prepare_cached(
            "DELETE FROM hapax_outbox \
             WHERE queue = ?1 AND id = ?2 AND state = 6 AND forget_at <= ?3",
        )
        .and_then(|mut statement| {
            statement.execute(params![queue.as_str(), item.id.to_string(), stored(now.0)])
        })
        .map(|gone| gone == 1)
        .map_err(fault)
}
