//! Adding items to a queue.

use hapax_core::queue::{Enqueued, QueueItem, QueueName};
use hapax_core::{StoreResult, Timestamp};
use rusqlite::params;

use super::item;
use crate::session::{Session, to_i64};

/// Deletes an item whose retention is over, so that another one with its id can be added.
pub(crate) const FORGET_ITEM: &str = "DELETE FROM hapax_outbox \
     WHERE queue = ?1 AND id = ?2 AND state = 6 AND forget_at <= ?3";

/// The caller holds the write lock, and rolls back if this fails.
pub(crate) fn enqueue(
    session: Session<'_>,
    queue: &QueueName,
    items: &[QueueItem],
) -> StoreResult<Vec<Enqueued>> {
    let now = session.now()?;
    items.iter().map(|item| add(session, queue, item, now)).collect()
}

fn add(
    session: Session<'_>,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> StoreResult<Enqueued> {
    let done = params![queue.as_str(), item.id.to_string(), to_i64(now.0)];
    let added = item::insert(session, queue, item, now)?
        || session.execute(FORGET_ITEM, done)? == 1 && item::insert(session, queue, item, now)?;
    Ok(if added { Enqueued::Accepted } else { Enqueued::Duplicate })
}
