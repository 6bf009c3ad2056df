//! Queue depth, and what waits, for an operator.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{ItemId, MAX_EXAMINED, QueueDepth, QueueName, QueuedItem, reasons};

use crate::connect::session::{Params, SqlRow, SqlSession};
use crate::error::SqlResult;
use crate::row;

pub(crate) async fn depth<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
) -> SqlResult<QueueDepth> {
    let (queue, counted) = (queue.as_str(), i64::from(MAX_EXAMINED));
    let rows = match tenant {
        None => session.rows(include_str!("../sql/depth.sql"), &[&queue, &counted]).await?,
        Some(tenant) => {
            let sql = include_str!("../sql/depth_of_tenant.sql");
            session.rows(sql, &[&queue, &tenant.as_str(), &counted]).await?
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

pub(crate) async fn waiting<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    at_most: u32,
) -> SqlResult<Vec<QueuedItem>> {
    let (tenant, at_most) = (tenant.map(Tenant::as_str), i64::from(at_most));
    let params: Params<'_> = &[&queue.as_str(), &tenant, &at_most, &i64::from(MAX_EXAMINED)];
    let rows = session.rows(include_str!("../sql/waiting.sql"), params).await?;
    rows.iter().map(decode_queued).collect()
}

fn decode_queued(row: &SqlRow) -> SqlResult<QueuedItem> {
    let (attempts, age): (i32, i64) = (row.try_get("attempts")?, row.try_get("age")?);
    let stored = row.try_get::<Option<&str>>("reason")?;
    Ok(QueuedItem {
        id: ItemId(row.try_get("id")?),
        topic: row.try_get::<&str>("topic")?.into(),
        key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
        attempts: attempts.unsigned_abs(),
        // Negative if the server's clock went back since the item was enqueued.
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
        in_flight: row.try_get("in_flight")?,
        reason: stored.map(|stored| reasons::newest(stored).into()),
    })
}

/// Each name is found by one step in indexes that begin with it. A queue that was ever leased from has its
/// shards; the rows of any other one wait. Those are looked for before the next queue with shards alone, so that no
/// step walks over the index entries of rows that were delivered, which stay while somebody has an old snapshot.
const QUEUES: &str = "WITH RECURSIVE names (queue) AS ( \
         SELECT '' COLLATE \"C\" \
         UNION ALL \
         SELECT coalesce( \
             least( \
                 (SELECT min(o.queue) FROM hapax_outbox o \
                  WHERE phase = 0 AND deliver_after IS NULL \
                    AND o.queue > names.queue AND o.queue < known.queue), \
                 (SELECT min(o.queue) FROM hapax_outbox o \
                  WHERE (phase = 1 OR phase = 0 AND deliver_after IS NOT NULL) \
                    AND o.queue > names.queue AND o.queue < known.queue), \
                 known.queue), \
             least( \
                 (SELECT min(o.queue) FROM hapax_outbox o \
                  WHERE known.queue IS NULL AND phase = 0 AND deliver_after IS NULL \
                    AND o.queue > names.queue), \
                 (SELECT min(o.queue) FROM hapax_outbox o \
                  WHERE known.queue IS NULL AND (phase = 1 OR phase = 0 AND deliver_after IS NOT NULL) \
                    AND o.queue > names.queue))) \
         FROM names \
         CROSS JOIN LATERAL (SELECT min(s.queue) AS queue FROM hapax_shards s WHERE s.queue > names.queue) known \
         WHERE names.queue IS NOT NULL) \
     SELECT queue FROM names WHERE queue <> ''";

pub(crate) async fn queues<S: SqlSession>(session: &mut S) -> SqlResult<Vec<QueueName>> {
    let rows = session.rows(QUEUES, &[]).await?;
    let mut names = Vec::with_capacity(rows.len());
    for row in &rows {
        names.extend(QueueName::new(row.try_get::<&str>("queue")?).ok());
    }
    Ok(names)
}
