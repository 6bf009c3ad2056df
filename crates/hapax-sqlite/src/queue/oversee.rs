//! Queue depth, and what waits, for an operator.

use hapax_core::queue::{ItemId, MAX_EXAMINED, QueueDepth, QueueName, QueuedItem, reasons};
use hapax_core::{StoreResult, Tenant, Timestamp};
use rusqlite::{Row, params};

use super::{item, state};
use crate::session::{Session, UnsignedColumns, to_i64};

/// Where a state has more than [`MAX_EXAMINED`] items, the rest is divided into so many pieces, because items may be
/// dense in one place and sparse in another.
const PIECES: i64 = 512;
/// So many items of each piece are counted.
const COUNTED_OF_PIECE: u32 = 64;

pub(crate) fn depth(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
) -> StoreResult<QueueDepth> {
    let (queue, tenant, now) = (queue.as_str(), tenant.map(Tenant::as_str), session.now()?);
    let mut depth = QueueDepth::default();
    for state in 0..=state::DEAD {
        let (count, oldest) = StateIndex { session, queue, tenant, state }.count()?;
        match state {
            ..state::IN_FLIGHT => depth.waiting += count,
            state::IN_FLIGHT => depth.in_flight += count,
            _ => depth.dead += count,
        }
        if let Some(oldest) = oldest.filter(|_| state <= state::IN_FLIGHT) {
            let created_at = session.one(
                "SELECT created_at FROM hapax_outbox WHERE seq = ?1",
                params![oldest],
                |row| row.unsigned(0).map(Timestamp),
            )?;
            depth.oldest_age = depth.oldest_age.max(Some(session.wall().since(created_at)));
        }
    }
    let lapsed = session.one(
        "SELECT count(*) FROM hapax_leases AS l JOIN hapax_outbox AS o ON o.token = l.token \
         WHERE l.queue = ?1 AND l.ends_at <= ?3 AND o.queue = ?1 AND o.state <= 3 \
           AND o.state = 3 AND (?2 IS NULL OR o.tenant = ?2)",
        params![queue, tenant, to_i64(now.0)],
        |row| row.unsigned(0),
    )?;
    depth.in_flight = depth.in_flight.saturating_sub(lapsed);
    depth.waiting += lapsed;
    Ok(depth)
}

/// The items of one queue in one state, along the index that has them in their order.
struct StateIndex<'a> {
    session: Session<'a>,
    queue: &'a str,
    tenant: Option<&'a str>,
    state: i64,
}

/// What was counted of a range of that index.
struct CountedRange {
    /// Of all tenants.
    items: u64,
    /// Of the tenant that is asked for.
    own: u64,
    oldest_own: Option<i64>,
    /// The last item that was counted.
    last_seq: i64,
}

impl StateIndex<'_> {
    /// The number of items, and the seq of the oldest that was looked at. Up to [`MAX_EXAMINED`] items are counted; what
    /// lies behind those is estimated at a cost that does not grow with it.
    fn count(&self) -> StoreResult<(u64, Option<i64>)> {
        let head = self.count_range(i64::MIN, i64::MAX, MAX_EXAMINED + 1)?;
        let (mut count, mut oldest) = (head.own, head.oldest_own);
        if head.items <= u64::from(MAX_EXAMINED) {
            return Ok((count, oldest));
        }
        let end = self.last_seq()?;
        let width = (end - head.last_seq) / PIECES + 1;
        let mut after = head.last_seq;
        while after < end {
            let piece_end = end.min(after.saturating_add(width));
            let piece = self.count_range(after, piece_end, COUNTED_OF_PIECE)?;
            oldest = oldest.or(piece.oldest_own);
            count += piece.own;
            if piece.items == u64::from(COUNTED_OF_PIECE) {
                // The rest of the piece is as dense as its first items, and the tenant's in the same proportion.
                let density = (piece.items - 1) as f64 / (piece.last_seq - after - 1) as f64;
                let share = piece.own as f64 / piece.items as f64;
                count += ((piece_end - piece.last_seq) as f64 * density * share).round() as u64;
            }
            after = piece_end;
        }
        Ok((count, oldest))
    }

    /// Counts the first items behind `after`, up to `end`.
    fn count_range(&self, after: i64, end: i64, at_most: u32) -> StoreResult<CountedRange> {
        let decode = |row: &Row<'_>| {
            Ok(CountedRange {
                items: row.unsigned(0)?,
                own: row.unsigned(1)?,
                oldest_own: row.get(2)?,
                last_seq: row.get(3)?,
            })
        };
        let (queue, state) = (self.queue, self.state);
        // The index is named, because statistics of `ANALYZE` might prefer the order of the rows, those that are done included.
        // Two texts: `?6 IS NULL OR …` in one of them would be evaluated for every row.
        match self.tenant {
            None => self.session.one(
                "SELECT count(*), count(*), min(seq), coalesce(max(seq), 0) \
                 FROM (SELECT seq FROM hapax_outbox INDEXED BY hapax_outbox_state \
                       WHERE queue = ?1 AND state <= 5 AND state = ?2 AND seq > ?3 AND seq <= ?4 \
                       ORDER BY seq LIMIT ?5)",
                params![queue, state, after, end, at_most],
                decode,
            ),
            Some(tenant) => self.session.one(
                "SELECT count(*), coalesce(sum(tenant = ?6), 0), \
                        min(CASE WHEN tenant = ?6 THEN seq END), coalesce(max(seq), 0) \
                 FROM (SELECT seq, tenant FROM hapax_outbox INDEXED BY hapax_outbox_state \
                       WHERE queue = ?1 AND state <= 5 AND state = ?2 AND seq > ?3 AND seq <= ?4 \
                       ORDER BY seq LIMIT ?5)",
                params![queue, state, after, end, at_most, tenant],
                decode,
            ),
        }
    }

    fn last_seq(&self) -> StoreResult<i64> {
        let last = self.session.first(
            "SELECT seq FROM hapax_outbox WHERE queue = ?1 AND state <= 5 AND state = ?2 \
             ORDER BY seq DESC LIMIT 1",
            params![self.queue, self.state],
            |row| row.get(0),
        )?;
        Ok(last.unwrap_or(0))
    }
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
                 FROM (SELECT seq, tenant FROM hapax_outbox INDEXED BY hapax_outbox_state \
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
