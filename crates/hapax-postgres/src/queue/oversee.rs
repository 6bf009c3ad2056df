//! Queue depth and dead letters, for an operator.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{DeadLetter, DeadLetterAction, ItemId, QueueDepth, QueueItem, QueueName};

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

pub(crate) async fn depth<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
) -> SqlResult<QueueDepth> {
    let rows = match tenant {
        None => session.rows(include_str!("../sql/depth.sql"), &[&queue.as_str()]).await?,
        Some(tenant) => {
            let sql = include_str!("../sql/depth_of_tenant.sql");
            session.rows(sql, &[&queue.as_str(), &tenant.as_str()]).await?
        }
    };
    let found = row::only(&rows)?;
    let in_flight = row::number(found, "in_flight")?;
    let oldest: Option<i64> = found.try_get("oldest")?;
    Ok(QueueDepth {
        waiting: row::number(found, "here")?.saturating_sub(in_flight),
        in_flight,
        dead: row::number(found, "dead")?,
        oldest_age: oldest.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
    })
}

pub(crate) async fn dead<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    after: Option<ItemId>,
    at_most: u32,
) -> SqlResult<Vec<DeadLetter>> {
    let (tenant, after) = (tenant.map(Tenant::as_str), after.map(|id| id.0));
    let sql = include_str!("../sql/dead.sql");
    let rows = session.rows(sql, &[&queue.as_str(), &tenant, &after, &i64::from(at_most)]).await?;
    let decode = |row: &SqlRow| {
        let attempts: i32 = row.try_get("attempts")?;
        Ok(DeadLetter {
            id: ItemId(row.try_get("id")?),
            topic: row.try_get::<&str>("topic")?.into(),
            key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
            attempts: attempts.unsigned_abs(),
            reason: row.try_get::<Option<&str>>("reason")?.unwrap_or_default().into(),
            at: row::timestamp(row, "died_at")?,
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

/// Each name is found by one step in indexes that begin with it. A queue that was ever leased from has its
/// shards; the rows of any other one wait.
const QUEUES: &str = "WITH RECURSIVE names (queue) AS ( \
         SELECT '' COLLATE \"C\" \
         UNION ALL \
         SELECT least( \
             (SELECT min(s.queue) FROM hapax_shards s WHERE s.queue > names.queue), \
             (SELECT min(o.queue) FROM hapax_outbox o \
              WHERE phase = 0 AND deliver_after IS NULL AND o.queue > names.queue), \
             (SELECT min(o.queue) FROM hapax_outbox o \
              WHERE (phase = 1 OR phase = 0 AND deliver_after IS NOT NULL) \
                AND o.queue > names.queue)) \
         FROM names WHERE names.queue IS NOT NULL) \
     SELECT queue FROM names WHERE queue <> ''";

pub(crate) async fn queues<S: SqlSession>(session: &mut S) -> SqlResult<Vec<QueueName>> {
    let rows = session.rows(QUEUES, &[]).await?;
    let mut names = Vec::with_capacity(rows.len());
    for row in &rows {
        names.extend(QueueName::new(row.try_get::<&str>("queue")?).ok());
    }
    Ok(names)
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
