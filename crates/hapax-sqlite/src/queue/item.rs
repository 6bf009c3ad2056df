//! An item between memory and its row.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::queue::{ItemId, LeasedItem, QueueItem, QueueName};
use hapax_core::{Fence, Key, StoreError, Tenant, Timestamp};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, params};
use serde_json::value::RawValue;

use crate::error::{bug, fault};
use crate::row::stored;

/// Adds a row; whether its id is new. The triggers of the table find its place.
pub(super) fn insert(
    connection: &Connection,
    queue: &QueueName,
    item: &QueueItem,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let headers =
        serde_json::to_string(&item.headers).map_err(|_| bug("headers without a text"))?;
    let deliver_after = (item.delay > Duration::ZERO).then(|| stored(now.plus(item.delay).0));
    connection
        .prepare_cached(
            "INSERT INTO hapax_outbox (queue, id, tenant, topic, key, payload, content_type, \
                    headers, deliver_after, created_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT (queue, id) DO NOTHING",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                queue.as_str(),
                item.id.to_string(),
                item.tenant.as_str(),
                &*item.topic,
                item.key.as_deref(),
                &item.payload[..],
                item.content_type.as_deref(),
                Some(headers).filter(|_| !item.headers.is_empty()),
                deliver_after,
                stored(now.0),
            ])
        })
        .map(|added| added == 1)
        .map_err(fault)
}

/// What [`decode`] reads, in this order.
pub(super) const COLUMNS: &str =
    "id, tenant, topic, key, payload, content_type, headers, attempts, fence, created_at";

/// A row as somebody inserted it, perhaps not hapax. Whatever it holds is handed out: a row that
/// could not be read would stop its whole queue.
pub(super) fn decode(row: &Row<'_>, now: Timestamp) -> rusqlite::Result<LeasedItem> {
    let id = text(row.get_ref(0)?).and_then(|id| id.parse().ok());
    let tenant = text(row.get_ref(1)?).and_then(|name| tenant(&name)).unwrap_or_default();
    let item = QueueItem {
        id: ItemId(id.ok_or(rusqlite::Error::InvalidQuery)?),
        tenant,
        topic: text(row.get_ref(2)?).unwrap_or_default().into(),
        key: shared(row.get_ref(3)?),
        payload: Bytes::copy_from_slice(bytes(row.get_ref(4)?)),
        content_type: shared(row.get_ref(5)?),
        headers: text(row.get_ref(6)?).map(|json| headers(&json)).unwrap_or_default(),
        delay: Duration::ZERO,
    };
    let number = |column| row.get::<_, i64>(column).map(|n| u64::try_from(n).unwrap_or(0));
    let attempt = u32::try_from(number(7)?).unwrap_or(u32::MAX - 1);
    let age = now.since(Timestamp(number(9)?));
    Ok(LeasedItem { item, attempt, fence: Fence(number(8)?), age })
}

pub(super) fn shared(value: ValueRef<'_>) -> Option<Arc<str>> {
    text(value).map(Into::into)
}

fn text(value: ValueRef<'_>) -> Option<Cow<'_, str>> {
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

/// The table has checked it; scoped tenants, which only hapax makes, pass too.
fn tenant(name: &str) -> Option<Tenant> {
    Key::stored(name, "record", "", "").map(|key| key.tenant().clone())
}

/// Values that are no texts, which another language may have put there, travel as their JSON. They
/// are not looked into: JSON may be deeper than we follow, and what looks like a text be none.
fn headers(json: &str) -> BTreeMap<String, String> {
    let parsed: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
    let plain = |value: &RawValue| {
        serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
    };
    parsed.into_iter().map(|(name, value)| (name, plain(value))).collect()
}
