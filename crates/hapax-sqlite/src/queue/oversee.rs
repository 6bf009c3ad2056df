//! Queue depth and dead letters, for an operator.

use hapax_core::queue::{DeadLetter, DeadLetterAction, ItemId, QueueDepth, QueueItem, QueueName};
use hapax_core::{StoreResult, Tenant, Timestamp};
use rusqlite::{Row, params};

use super::{item, state};
use crate::session::{Session, UnsignedColumns, to_i64};

pub(crate) fn depth(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
) -> StoreResult<QueueDepth> {
    let (queue, tenant, now) = (queue.as_str(), tenant.map(Tenant::as_str), session.now()?);
    let mut depth = QueueDepth::default();
    for state in 0..=state::DEAD {
        // Two texts: `?3 IS NULL OR …` in one of them would be evaluated for every row.
        let count = match tenant {
            None => session.one(
                "SELECT count(*) FROM hapax_outbox \
                 WHERE queue = ?1 AND state <= 5 AND state = ?2",
                params![queue, state],
                |row| row.unsigned(0),
            ),
            Some(tenant) => session.one(
                "SELECT count(*) FROM hapax_outbox \
                 WHERE queue = ?1 AND state <= 5 AND state = ?2 AND tenant = ?3",
                params![queue, state, tenant],
                |row| row.unsigned(0),
            ),
        }?;
        match state {
            ..state::IN_FLIGHT => depth.waiting += count,
            state::IN_FLIGHT => depth.in_flight += count,
            _ => depth.dead += count,
        }
    }
    let lapsed = session.one(
        "SELECT count(*) FROM hapax_leases AS l JOIN hapax_outbox AS o ON o.token = l.token \
         WHERE l.queue = ?1 AND l.ends_at <= ?3 AND o.queue = ?1 AND o.state <= 3 \
           AND o.state = 3 AND (?2 IS NULL OR o.tenant = ?2)",
        params![queue, tenant, to_i64(now.0)],
        |row| row.unsigned(0),
    )?;
    depth.in_flight -= lapsed;
    depth.waiting += lapsed;
    for state in 0..=state::IN_FLIGHT {
        let oldest = session.first(
            "SELECT created_at FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND state = ?3 AND (?2 IS NULL OR tenant = ?2) \
             ORDER BY seq LIMIT 1",
            params![queue, tenant, state],
            |row| row.unsigned(0).map(Timestamp),
        )?;
        depth.oldest_age = depth.oldest_age.max(oldest.map(|at| session.wall().since(at)));
    }
    Ok(depth)
}

pub(crate) fn dead(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    after: Option<ItemId>,
    at_most: u32,
) -> StoreResult<Vec<DeadLetter>> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    session.all(
        "SELECT id, key, attempts, reason, ended_at, topic FROM hapax_outbox \
         WHERE queue = ?1 AND state BETWEEN 4 AND 5 AND id > ?3 \
           AND (?2 IS NULL OR tenant = ?2) ORDER BY id LIMIT ?4",
        params![queue.as_str(), tenant.map(Tenant::as_str), after, at_most],
        decode_dead_letter,
    )
}

fn decode_dead_letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let id = row.get_ref(0)?.as_str()?.parse();
    Ok(DeadLetter {
        id: ItemId(id.map_err(|_| rusqlite::Error::InvalidQuery)?),
        key: item::shared_text(row.get_ref(1)?),
        attempts: row.get(2)?,
        reason: item::shared_text(row.get_ref(3)?).unwrap_or_default(),
        at: Timestamp(row.unsigned_or_null(4)?.unwrap_or(0)),
        topic: item::shared_text(row.get_ref(5)?).unwrap_or_default(),
    })
}

/// The item of a dead letter, with its payload.
pub(crate) fn dead_item(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
) -> StoreResult<Option<QueueItem>> {
    let sql = format!(
        "SELECT {} FROM hapax_outbox WHERE queue = ?1 AND id = ?2 AND state BETWEEN 4 AND 5 \
           AND (?3 IS NULL OR tenant = ?3)",
        item::COLUMNS
    );
    let params = params![queue.as_str(), id.to_string(), tenant.map(Tenant::as_str)];
    let now = session.now()?;
    Ok(session.first(&sql, params, |row| item::decode(row, now))?.map(|leased| leased.item))
}

/// The names of the queues, each found by one step in an index that begins with the name.
pub(crate) fn queues(session: Session<'_>) -> StoreResult<Vec<QueueName>> {
    let names: Vec<String> = session.all(
        "WITH RECURSIVE names (queue) AS ( \
             SELECT min(queue) FROM hapax_outbox \
             UNION ALL \
             SELECT (SELECT min(o.queue) FROM hapax_outbox AS o WHERE o.queue > names.queue) \
             FROM names WHERE names.queue IS NOT NULL) \
         SELECT queue FROM names WHERE queue IS NOT NULL",
        [],
        |row| row.get(0),
    )?;
    Ok(names.iter().filter_map(|name| QueueName::new(name).ok()).collect())
}

pub(crate) fn resolve_dead(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
    action: DeadLetterAction,
) -> StoreResult<bool> {
    let found: Option<i64> = session.first(
        "SELECT seq FROM hapax_outbox WHERE queue = ?1 AND id = ?2 AND state BETWEEN 4 AND 5 \
           AND (?3 IS NULL OR tenant = ?3)",
        params![queue.as_str(), id.to_string(), tenant.map(Tenant::as_str)],
        |row| row.get(0),
    )?;
    let Some(seq) = found else { return Ok(false) };
    match action {
        DeadLetterAction::Requeue => requeue(session, seq)?,
        // The trigger of the table releases the next item of the key.
        DeadLetterAction::Discard => {
            session.execute("DELETE FROM hapax_outbox WHERE seq = ?1", [seq])?;
        }
    }
    Ok(true)
}

/// Makes a dead letter wait again in its old place. If its key went on without it, the item at the
/// front of the key now waits behind it.
fn requeue(session: Session<'_>, seq: i64) -> StoreResult<()> {
    session.execute(
        "UPDATE hapax_outbox SET state = 2 WHERE state <= 1 AND seq = ( \
             SELECT next.seq FROM hapax_outbox AS next JOIN hapax_outbox AS dead \
               ON next.queue = dead.queue AND next.tenant = dead.tenant \
              AND next.key = dead.key AND next.state <= 4 AND next.seq > dead.seq \
             WHERE dead.seq = ?1 ORDER BY next.seq LIMIT 1)",
        [seq],
    )?;
    let requeued = session.execute(
        "UPDATE hapax_outbox AS o \
         SET attempts = 0, deliver_after = NULL, reason = NULL, ended_at = NULL, \
             state = CASE WHEN EXISTS ( \
                 SELECT 1 FROM hapax_outbox AS e WHERE e.queue = o.queue \
                   AND e.tenant = o.tenant AND e.key = o.key \
                   AND e.state <= 4 AND e.seq < o.seq) THEN 2 ELSE 0 END \
         WHERE seq = ?1",
        [seq],
    );
    requeued.map(drop)
}
