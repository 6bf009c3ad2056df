//! The row of an item.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::queue::{ItemId, LeasedItem, QueueItem, QueueName};
use hapax_core::{Fence, StoreResult, Tenant, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Row, params};

use crate::error::internal_error;
use crate::session::{Session, to_i64};

pub(crate) const INSERT_ITEM: &str = "INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, headers, \
            deliver_after, created_at) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (queue, id) DO NOTHING";

/// Inserts a row and returns whether its id is new. The triggers of the table set its state.
pub(super) fn insert(
    session: Session<'_>,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> StoreResult<bool> {
    let columns = ItemColumns::of(item, now, session.wall())?;
    let added = session.execute(
        INSERT_ITEM,
        params![
            queue.as_str(),
            columns.id,
            item.tenant.as_str(),
            &*item.topic,
            item.key.as_deref(),
            &item.payload[..],
            item.content_type.as_deref(),
            columns.headers,
            columns.deliver_after,
            columns.created_at,
        ],
    )?;
    Ok(added == 1)
}

/// The columns of an item that are not stored as they are.
pub(crate) struct ItemColumns {
    pub(crate) id: String,
    pub(crate) headers: Option<String>,
    pub(crate) deliver_after: Option<i64>,
    pub(crate) created_at: i64,
}

impl ItemColumns {
    pub(crate) fn of(item: &QueueItem, now: Timestamp, wall: Timestamp) -> StoreResult<Self> {
        let headers = serde_json::to_string(&item.headers)
            .map_err(|_| internal_error("headers without a text"))?;
        Ok(Self {
            id: item.id.to_string(),
            headers: Some(headers).filter(|_| !item.headers.is_empty()),
            deliver_after: (item.delay > Duration::ZERO).then(|| to_i64(now.plus(item.delay).0)),
            created_at: to_i64(wall.0),
        })
    }
}

/// The columns that [`decode`] reads, in this order.
pub(super) const COLUMNS: &str =
    "id, tenant, topic, key, payload, content_type, headers, attempts, fence, created_at";

/// Reads a row that hapax or any other program inserted. Unexpected values are replaced, not refused,
/// because a row that cannot be read would stop its whole queue.
pub(super) fn decode(row: &Row<'_>, wall: Timestamp) -> rusqlite::Result<LeasedItem> {
    let id = text(row.get_ref(0)?).and_then(|id| id.parse().ok());
    let headers = text(row.get_ref(6)?).map(|json| QueueItem::headers_from_json(&json));
    let item = QueueItem {
        id: ItemId(id.ok_or(rusqlite::Error::InvalidQuery)?),
        tenant: text(row.get_ref(1)?).map(|name| Tenant::stored(&name)).unwrap_or_default(),
        topic: text(row.get_ref(2)?).unwrap_or_default().into(),
        key: shared_text(row.get_ref(3)?),
        payload: Bytes::copy_from_slice(bytes(row.get_ref(4)?)),
        content_type: shared_text(row.get_ref(5)?),
        headers: headers.unwrap_or_default(),
        delay: Duration::ZERO,
    };
    let number = |column| row.get::<_, i64>(column).map(|n| u64::try_from(n).unwrap_or(0));
    let attempt = u32::try_from(number(7)?).unwrap_or(u32::MAX - 1);
    let age = wall.since(Timestamp(number(9)?));
    Ok(LeasedItem { item, attempt, fence: Fence(number(8)?), age })
}

pub(super) fn shared_text(value: ValueRef<'_>) -> Option<Arc<str>> {
    text(value).map(Into::into)
}

pub(super) fn text(value: ValueRef<'_>) -> Option<Cow<'_, str>> {
    match value {
        ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes)),
        _ => None,
    }
}

fn bytes(value: ValueRef<'_>) -> &[u8] {
    match value {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        _ => &[],
    }
}
