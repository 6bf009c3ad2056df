//! Handing out items under a lease. The SQL is the function `hapax_lease` in `migrations/0004_sweep_and_queue.sql`.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{ItemId, LeaseRequest, LeasedItem, QueueItem, QueueName};
use hapax_core::{Fence, Tenant};

use crate::connect::session::{SqlRow, SqlSession};
use crate::error::SqlResult;
use crate::row;

const LEASE: &str = "SELECT * FROM hapax_lease($1, $2, $3, $4)";

/// Leases due items; `None` if nothing was found because other nodes were leasing at the same time.
pub(crate) async fn lease<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    take: &LeaseRequest,
) -> SqlResult<Option<Vec<LeasedItem>>> {
    let (token, at_most) =
        (take.token.as_str().as_bytes(), row::to_i64(take.max_items.max(1) as u64));
    let lease = row::interval_millis(take.lease);
    let rows = session.rows(LEASE, &[&queue.as_str(), &token, &at_most, &lease]).await?;
    let mut leased = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(seq) = row.try_get::<Option<i64>>("seq")? else { return Ok(None) };
        leased.push((seq, decode_leased(row)?));
    }
    leased.sort_unstable_by_key(|(seq, _)| *seq);
    Ok(Some(leased.into_iter().map(|(_, leased)| leased).collect()))
}

/// The item of a row.
pub(super) fn decode_item(row: &SqlRow) -> SqlResult<QueueItem> {
    let headers = row.try_get::<Option<&str>>("headers")?.map(QueueItem::headers_from_json);
    Ok(QueueItem {
        id: ItemId(row.try_get("id")?),
        tenant: Tenant::stored(row.try_get("tenant")?),
        topic: row.try_get::<&str>("topic")?.into(),
        key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
        payload: row::bytes(row, "payload")?,
        content_type: row.try_get::<Option<&str>>("content_type")?.map(Arc::from),
        headers: headers.unwrap_or_default(),
        delay: Duration::ZERO,
    })
}

fn decode_leased(row: &SqlRow) -> SqlResult<LeasedItem> {
    let item = decode_item(row)?;
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
