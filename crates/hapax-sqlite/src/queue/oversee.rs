//! Queue depth, and what waits, for an operator.

use hapax_core::queue::{ItemId, MAX_EXAMINED, QueueDepth, QueueName, QueuedItem, reasons};
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

/// The oldest items of each state, read along the index of states: those of the other states are not looked at.
pub(crate) fn waiting(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    at_most: u32,
) -> StoreResult<Vec<QueuedItem>> {
    let (queue, now) = (queue.as_str(), to_i64(session.now()?.0));
    let mut found: Vec<(i64, QueuedItem)> = Vec::new();
    for state in 0..=state::IN_FLIGHT {
        let decode = |row: &Row<'_>| decode_queued(row, session.wall());
        // The index has the tenant, so that no row of another one is read.
        let items: Vec<_> = match tenant {
            None => session.all(
                "SELECT o.seq, o.id, o.topic, o.key, o.attempts, o.created_at, o.reason, \
                        coalesce(l.ends_at > ?3, 0) \
                 FROM hapax_outbox AS o LEFT JOIN hapax_leases AS l \
                   ON o.state = 3 AND l.queue = o.queue AND l.token = o.token \
                 WHERE o.queue = ?1 AND o.state <= 5 AND o.state = ?2 ORDER BY o.seq LIMIT ?4",
                params![queue, state, now, at_most],
                decode,
            ),
            Some(tenant) => session.all(
                "SELECT o.seq, o.id, o.topic, o.key, o.attempts, o.created_at, o.reason, \
                        coalesce(l.ends_at > ?3, 0) \
                 FROM (SELECT seq, tenant FROM hapax_outbox \
                       WHERE queue = ?1 AND state <= 5 AND state = ?2 ORDER BY seq LIMIT ?6) AS i \
                 CROSS JOIN hapax_outbox AS o ON o.seq = i.seq LEFT JOIN hapax_leases AS l \
                   ON o.state = 3 AND l.queue = o.queue AND l.token = o.token \
                 WHERE i.tenant = ?5 LIMIT ?4",
                params![queue, state, now, at_most, tenant.as_str(), MAX_EXAMINED],
                decode,
            ),
        }?;
        found.extend(items);
    }
    found.sort_by_key(|(seq, _)| *seq);
    found.truncate(at_most as usize);
    Ok(found.into_iter().map(|(_, item)| item).collect())
}

fn decode_queued(row: &Row<'_>, wall: Timestamp) -> rusqlite::Result<(i64, QueuedItem)> {
    let id = row.get_ref(1)?.as_str()?.parse();
    let reasons = item::text(row.get_ref(6)?);
    let queued = QueuedItem {
        id: ItemId(id.map_err(|_| rusqlite::Error::InvalidQuery)?),
        topic: item::shared_text(row.get_ref(2)?).unwrap_or_default(),
        key: item::shared_text(row.get_ref(3)?),
        attempts: row.get(4)?,
        age: wall.since(Timestamp(row.unsigned(5)?)),
        in_flight: row.get(7)?,
        reason: reasons.map(|stored| reasons::newest(&stored).into()),
    };
    Ok((row.get(0)?, queued))
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
