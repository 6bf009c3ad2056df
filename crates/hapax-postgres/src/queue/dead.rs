//! Dead letters, for an operator.

use std::sync::Arc;

use hapax_core::Tenant;
use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, ItemId, MAX_EXAMINED, QueueItem,
    QueueName, reasons,
};

use super::lease::decode_item;
use crate::connect::session::{Params, SqlRow, SqlSession};
use crate::error::SqlResult;
use crate::row;

/// The row waits as one that is due at once, because a lease looks for those everywhere, but for rows of
/// phase 0 only behind the rows that were delivered.
const REQUEUE: &str = "UPDATE hapax_outbox \
     SET phase = 1, due_at = clock_timestamp(), attempts = 0, reason = NULL \
     WHERE queue = $1 AND id = $3 AND (phase = 3 OR phase = 4) \
       AND ($2 IS NULL OR tenant = $2) RETURNING 1";

const DISCARD: &str = "DELETE FROM hapax_outbox WHERE queue = $1 AND id = $3 AND (phase = 3 OR phase = 4) \
       AND ($2 IS NULL OR tenant = $2) RETURNING 1";

pub(crate) async fn dead<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    query: &DeadQuery,
) -> SqlResult<Vec<DeadLetter>> {
    let (tenant, after) = (tenant.map(Tenant::as_str), query.after.map(|id| id.0));
    let (at_most, reason) = (i64::from(query.at_most), query.reason.as_deref());
    let params: Params<'_> = &[&queue.as_str(), &tenant, &after, &at_most, &reason, &i64::MAX];
    let rows = session.rows(include_str!("../sql/dead.sql"), params).await?;
    let decode = |row: &SqlRow| {
        let attempts: i32 = row.try_get("attempts")?;
        let stored = row.try_get::<Option<&str>>("reason")?.unwrap_or_default();
        Ok(DeadLetter {
            id: ItemId(row.try_get("id")?),
            topic: row.try_get::<&str>("topic")?.into(),
            key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
            attempts: attempts.unsigned_abs(),
            reason: reasons::newest(stored).into(),
            errors: reasons::oldest_first(stored),
            at: row::timestamp(row, "died_at")?,
        })
    };
    rows.iter().map(decode).collect()
}

pub(crate) async fn dead_reasons<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    at_most: u32,
) -> SqlResult<Vec<DeadReason>> {
    let (tenant, at_most) = (tenant.map(Tenant::as_str), i64::from(at_most));
    let params: Params<'_> = &[&queue.as_str(), &tenant, &at_most, &i64::from(MAX_EXAMINED)];
    let rows = session.rows(include_str!("../sql/dead_reasons.sql"), params).await?;
    let decode = |row: &SqlRow| {
        Ok(DeadReason {
            reason: row.try_get::<&str>("reason")?.into(),
            count: row::number(row, "letters")?,
            first_at: row::timestamp(row, "first_at")?,
            last_at: row::timestamp(row, "last_at")?,
        })
    };
    rows.iter().map(decode).collect()
}

const DEAD_ITEM: &str = "SELECT id, tenant, topic, key, payload, content_type, headers::text AS headers \
     FROM hapax_outbox WHERE queue = $1 AND id = $3 AND (phase = 3 OR phase = 4) \
       AND ($2 IS NULL OR tenant = $2)";

/// The item of a dead letter, with its payload.
pub(crate) async fn dead_item<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
) -> SqlResult<Option<QueueItem>> {
    let params: Params<'_> = &[&queue.as_str(), &tenant.map(Tenant::as_str), &id.0];
    let rows = session.rows(DEAD_ITEM, params).await?;
    rows.first().map(decode_item).transpose()
}

pub(crate) async fn resolve_dead<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
    action: DeadLetterAction,
) -> SqlResult<bool> {
    let sql = match action {
        DeadLetterAction::Requeue => REQUEUE,
        DeadLetterAction::Discard => DISCARD,
    };
    let rows = session.rows(sql, &[&queue.as_str(), &tenant.map(Tenant::as_str), &id.0]).await?;
    Ok(!rows.is_empty())
}
