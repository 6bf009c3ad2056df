//! Handing out items under a lease. The SQL is the function `hapax_lease` in `migrations/0003_queue.sql`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{ItemId, LeaseRequest, LeasedItem, QueueItem, QueueName};
use hapax_core::{Fence, Key};
use serde_json::value::RawValue;
use tokio_postgres::types::Type;

use crate::connect::session::{Sql, SqlRow, SqlSession};
use crate::error::{StatementError, corrupt};
use crate::row;

const LEASE: Sql = Sql {
    text: "SELECT * FROM hapax_lease($1, $2, $3, $4)",
    types: &[Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8],
};

/// Leases due items; `None` if nothing was found because other nodes were leasing at the same time.
pub(crate) async fn lease<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    take: &LeaseRequest,
) -> Result<Option<Vec<LeasedItem>>, StatementError> {
    let (token, at_most) =
        (take.token.as_str().as_bytes(), row::to_i64(take.max_items.max(1) as u64));
    let lease = row::interval_millis(take.lease);
    let rows = session.rows(&LEASE, &[&queue.as_str(), &token, &at_most, &lease]).await?;
    let mut leased = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(seq) = row.try_get::<Option<i64>>("seq")? else { return Ok(None) };
        leased.push((seq, decode_leased(row)?));
    }
    leased.sort_unstable_by_key(|(seq, _)| *seq);
    Ok(Some(leased.into_iter().map(|(_, leased)| leased).collect()))
}

fn decode_leased(row: &SqlRow) -> Result<LeasedItem, StatementError> {
    let tenant = Key::stored(row.try_get("tenant")?, "record", "", "");
    let item = QueueItem {
        id: ItemId(row.try_get("id")?),
        tenant: tenant.ok_or_else(|| corrupt("a tenant"))?.tenant().clone(),
        topic: row.try_get::<&str>("topic")?.into(),
        key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
        payload: row::bytes(row, "payload")?,
        content_type: row.try_get::<Option<&str>>("content_type")?.map(Arc::from),
        headers: row.try_get::<Option<&str>>("headers")?.map(headers).unwrap_or_default(),
        delay: Duration::ZERO,
    };
    let attempt: i32 = row.try_get("attempt")?;
    // Negative if the server's clock went back since the item was enqueued.
    let age: i64 = row.try_get("age")?;
    Ok(LeasedItem {
        item,
        attempt: attempt.unsigned_abs(),
        fence: Fence(row::number(row, "fence")?),
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
    })
}

/// A value that is not a string, as another program may insert, is kept as its JSON text. It is not
/// parsed, because it may be nested deeper than serde follows, and a row that cannot be read would
/// stop its whole queue.
fn headers(json: &str) -> BTreeMap<String, String> {
    let parsed: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
    let plain = |value: &RawValue| {
        serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
    };
    parsed.into_iter().map(|(name, value)| (name, plain(value))).collect()
}
