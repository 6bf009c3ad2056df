//! Queue depth and dead letters, for an operator.

use hapax_core::queue::{DeadLetter, ItemId, QueueDepth, QueueName};
use hapax_core::{Clock, StoreError, Tenant, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{item, state};
use crate::error::column_error;
use crate::row::to_i64;

pub(crate) fn depth(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    tenant: Option<&Tenant>,
) -> Result<QueueDepth, StoreError> {
    let (queue, tenant, now) = (queue.as_str(), tenant.map(Tenant::as_str), clock.now());
    let count_items = || -> rusqlite::Result<QueueDepth> {
        let mut depth = QueueDepth::default();
        let mut query = connection.prepare_cached(
            "SELECT state, count(*) FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND (?2 IS NULL OR tenant = ?2) GROUP BY state",
        )?;
        let mut rows = query.query(params![queue, tenant])?;
        while let Some(row) = rows.next()? {
            let (state, count): (i64, u64) = (row.get(0)?, row.get(1)?);
            match state {
                ..state::IN_FLIGHT => depth.waiting += count,
                state::IN_FLIGHT => depth.in_flight += count,
                _ => depth.dead += count,
            }
        }
        let lapsed: u64 = connection
            .prepare_cached(
                "SELECT count(*) FROM hapax_leases AS l JOIN hapax_outbox AS o ON o.token = l.token \
                 WHERE l.queue = ?1 AND l.ends_at <= ?3 AND o.queue = ?1 AND o.state <= 3 \
                   AND o.state = 3 AND (?2 IS NULL OR o.tenant = ?2)",
            )?
            .query_row(params![queue, tenant, to_i64(now.0)], |row| row.get(0))?;
        depth.in_flight -= lapsed;
        depth.waiting += lapsed;
        let oldest =
            (0..=state::IN_FLIGHT).map(|state| oldest_in_state(connection, queue, tenant, state));
        for created_at in oldest {
            depth.oldest_age = depth.oldest_age.max(created_at?.map(|at| now.since(at)));
        }
        Ok(depth)
    };
    count_items().map_err(column_error)
}

fn oldest_in_state(
    connection: &Connection,
    queue: &str,
    tenant: Option<&str>,
    state: i64,
) -> rusqlite::Result<Option<Timestamp>> {
    connection
        .prepare_cached(
            "SELECT created_at FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND state = ?3 AND (?2 IS NULL OR tenant = ?2) \
             ORDER BY seq LIMIT 1",
        )?
        .query_row(params![queue, tenant, state], |row| row.get(0).map(Timestamp))
        .optional()
}

pub(crate) fn dead(
    connection: &Connection,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    after: Option<ItemId>,
    at_most: u32,
) -> Result<Vec<DeadLetter>, StoreError> {
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let read = || -> rusqlite::Result<_> {
        connection
            .prepare_cached(
                "SELECT id, key, attempts, reason, ended_at FROM hapax_outbox \
                 WHERE queue = ?1 AND state BETWEEN 4 AND 5 AND id > ?3 \
                   AND (?2 IS NULL OR tenant = ?2) ORDER BY id LIMIT ?4",
            )?
            .query_map(
                params![queue.as_str(), tenant.map(Tenant::as_str), after, at_most],
                decode_dead_letter,
            )?
            .collect()
    };
    read().map_err(column_error)
}

fn decode_dead_letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let id = row.get_ref(0)?.as_str()?.parse();
    Ok(DeadLetter {
        id: ItemId(id.map_err(|_| rusqlite::Error::InvalidQuery)?),
        key: item::shared_text(row.get_ref(1)?),
        attempts: row.get(2)?,
        reason: item::shared_text(row.get_ref(3)?).unwrap_or_default(),
        at: Timestamp(row.get::<_, Option<u64>>(4)?.unwrap_or(0)),
    })
}

/// Makes a dead letter wait again in its old place. If its key went on without it, the item at the
/// front of the key now waits behind it.
pub(crate) fn requeue(
    connection: &Connection,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
) -> Result<bool, StoreError> {
    let requeue = || -> rusqlite::Result<bool> {
        let Some(seq) = find_dead_letter(connection, queue, tenant, id)? else { return Ok(false) };
        connection
            .prepare_cached(
                "UPDATE hapax_outbox SET state = 2 WHERE state <= 1 AND seq = ( \
                     SELECT next.seq FROM hapax_outbox AS next JOIN hapax_outbox AS dead \
                       ON next.queue = dead.queue AND next.tenant = dead.tenant \
                      AND next.key = dead.key AND next.state <= 4 AND next.seq > dead.seq \
                     WHERE dead.seq = ?1 ORDER BY next.seq LIMIT 1)",
            )?
            .execute([seq])?;
        connection
            .prepare_cached(
                "UPDATE hapax_outbox AS o \
                 SET attempts = 0, deliver_after = NULL, reason = NULL, ended_at = NULL, \
                     state = CASE WHEN EXISTS ( \
                         SELECT 1 FROM hapax_outbox AS e WHERE e.queue = o.queue \
                           AND e.tenant = o.tenant AND e.key = o.key \
                           AND e.state <= 4 AND e.seq < o.seq) THEN 2 ELSE 0 END \
                 WHERE seq = ?1",
            )?
            .execute([seq])?;
        Ok(true)
    };
    requeue().map_err(column_error)
}

/// Deletes a dead letter; the trigger of the table releases the next item of its key.
pub(crate) fn discard(
    connection: &Connection,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
) -> Result<bool, StoreError> {
    let discard = || -> rusqlite::Result<bool> {
        let Some(seq) = find_dead_letter(connection, queue, tenant, id)? else { return Ok(false) };
        connection.prepare_cached("DELETE FROM hapax_outbox WHERE seq = ?1")?.execute([seq])?;
        Ok(true)
    };
    discard().map_err(column_error)
}

fn find_dead_letter(
    connection: &Connection,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    id: ItemId,
) -> rusqlite::Result<Option<i64>> {
    connection
        .prepare_cached(
            "SELECT seq FROM hapax_outbox WHERE queue = ?1 AND id = ?2 AND state BETWEEN 4 AND 5 \
               AND (?3 IS NULL OR tenant = ?3)",
        )?
        .query_row(params![queue.as_str(), id.to_string(), tenant.map(Tenant::as_str)], |row| {
            row.get(0)
        })
        .optional()
}
