//! Handing out. What is ready stands in an index of its own, oldest first, and so does nothing that
//! waits behind another of its key: a lease looks at what it hands out, and at one more of each key.

use std::collections::BTreeSet;

use hapax_core::queue::{LeaseRequest, LeasedItem, QueueName};
use hapax_core::{Clock, StoreError, Timestamp};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::item;
use crate::row::{damaged, next, stored};

/// So many bytes are handed out at once, and the item that goes beyond.
const MAX_BYTES: usize = 8 << 20;
/// So many rows that became due are made ready by one lease.
const RIPEN: usize = 1000;

pub(crate) fn lease(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    take: &LeaseRequest,
) -> Result<Vec<LeasedItem>, StoreError> {
    let leasing = Leasing { connection, queue: queue.as_str(), take, now: clock.now() };
    leasing.run()
}

struct Leasing<'a> {
    connection: &'a Connection,
    queue: &'a str,
    take: &'a LeaseRequest,
    now: Timestamp,
}

impl Leasing<'_> {
    fn run(&self) -> Result<Vec<LeasedItem>, StoreError> {
        let again = self.again().map_err(damaged)?;
        if !again.is_empty() {
            return Ok(again);
        }
        self.lapse().and_then(|()| self.ripen()).map_err(damaged)?;
        let mut leased = self.pick().map_err(damaged)?;
        if leased.is_empty() {
            return Ok(Vec::new());
        }
        let fence = next(self.connection)?;
        self.hold(fence, &leased).map_err(damaged)?;
        for (_, leased) in &mut leased {
            leased.attempt += 1;
            leased.fence.0 = fence;
        }
        Ok(leased.into_iter().map(|(_, leased)| leased).collect())
    }

    /// What the token holds by a lease that has not lapsed, with the lease anew: the answer to a
    /// question that was asked before.
    fn again(&self) -> rusqlite::Result<Vec<LeasedItem>> {
        let token = self.take.token.as_str();
        let ends_at: Option<u64> = self
            .prepare("SELECT ends_at FROM hapax_leases WHERE queue = ?1 AND token = ?2")?
            .query_row([self.queue, token], |row| row.get(0))
            .optional()?;
        match ends_at {
            None => return Ok(Vec::new()),
            Some(end) if end <= self.now.0 => {
                self.release(token)?;
                return Ok(Vec::new());
            }
            Some(_) => self.set_end()?,
        }
        self.prepare(&format!(
            "SELECT {} FROM hapax_outbox \
             WHERE token = ?1 AND queue = ?2 AND state <= 3 AND state = 3 ORDER BY seq",
            item::COLUMNS
        ))?
        .query_map([token, self.queue], |row| item::decode(row, self.now))?
        .collect()
    }

    /// Makes ready what is held by leases that have ended. The tokens stay: a late step counts for as
    /// long as nobody else has the item.
    fn lapse(&self) -> rusqlite::Result<()> {
        let ended: Vec<String> = self
            .prepare("SELECT token FROM hapax_leases WHERE queue = ?1 AND ends_at <= ?2 LIMIT 100")?
            .query_map(params![self.queue, stored(self.now.0)], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        let mut rows = 0;
        for token in ended {
            if rows < RIPEN {
                rows += self.release(&token)?;
            }
        }
        Ok(())
    }

    fn release(&self, token: &str) -> rusqlite::Result<usize> {
        self.prepare("DELETE FROM hapax_leases WHERE queue = ?1 AND token = ?2")?
            .execute([self.queue, token])?;
        self.prepare(
            "UPDATE hapax_outbox AS o SET state = CASE WHEN EXISTS ( \
                 SELECT 1 FROM hapax_outbox AS e \
                 WHERE e.queue = o.queue AND e.tenant = o.tenant AND e.key = o.key \
                   AND e.state <= 4 AND e.seq < o.seq) THEN 2 ELSE 0 END \
             WHERE o.token = ?1 AND o.queue = ?2 AND o.state <= 3 AND o.state = 3",
        )?
        .execute([token, self.queue])
    }

    /// Makes ready what has become due.
    fn ripen(&self) -> rusqlite::Result<()> {
        self.prepare(
            "UPDATE hapax_outbox SET state = 0 WHERE seq IN ( \
                 SELECT seq FROM hapax_outbox \
                 WHERE queue = ?1 AND state = 1 AND deliver_after <= ?2 \
                 ORDER BY deliver_after LIMIT ?3)",
        )?
        .execute(params![self.queue, stored(self.now.0), RIPEN as i64])
        .map(drop)
    }

    /// The oldest ones first: those that are ready, and behind each of them the next of its key.
    fn pick(&self) -> rusqlite::Result<Vec<(i64, LeasedItem)>> {
        let (mut candidates, mut picked, mut bytes) = (self.ready()?, Vec::new(), 0);
        while picked.len() < self.take.max_items
            && bytes < MAX_BYTES
            && let Some(seq) = candidates.pop_first()
        {
            let leased = self.load(seq)?;
            bytes += leased.item.payload.len();
            picked.push((seq, leased));
            candidates.extend(self.follower(seq)?);
        }
        Ok(picked)
    }

    fn ready(&self) -> rusqlite::Result<BTreeSet<i64>> {
        self.prepare(
            "SELECT seq FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND state = 0 ORDER BY seq LIMIT ?2",
        )?
        .query_map(params![self.queue, stored(self.take.max_items as u64)], |row| row.get(0))?
        .collect()
    }

    /// The next of the same key, if it waits for nothing but this one. The engine compares the keys:
    /// they need not be texts that we can read.
    fn follower(&self, seq: i64) -> rusqlite::Result<Option<i64>> {
        let next: Option<(i64, bool)> = self
            .prepare(
                "SELECT next.seq, next.state = 2 AND coalesce(next.deliver_after, 0) <= ?2 \
                 FROM hapax_outbox AS this JOIN hapax_outbox AS next \
                   ON next.queue = this.queue AND next.tenant = this.tenant AND next.key = this.key \
                 WHERE this.seq = ?1 AND next.state <= 4 AND next.seq > ?1 \
                 ORDER BY next.seq LIMIT 1",
            )?
            .query_row(params![seq, stored(self.now.0)], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        Ok(next.filter(|(_, waits)| *waits).map(|(seq, _)| seq))
    }

    fn load(&self, seq: i64) -> rusqlite::Result<LeasedItem> {
        self.prepare(&format!("SELECT {} FROM hapax_outbox WHERE seq = ?1", item::COLUMNS))?
            .query_row([seq], |row| item::decode(row, self.now))
    }

    /// All at once: each statement on its own would have to be able to undo itself.
    fn hold(&self, fence: u64, picked: &[(i64, LeasedItem)]) -> rusqlite::Result<()> {
        let rows = list(picked.iter().map(|(seq, _)| *seq));
        self.prepare(
            "UPDATE hapax_outbox SET state = 3, token = ?2, fence = ?3, attempts = attempts + 1, \
                    deliver_after = NULL WHERE seq IN (SELECT value FROM json_each(?1))",
        )?
        .execute(params![rows, self.take.token.as_str(), stored(fence)])?;
        self.set_end()
    }

    fn set_end(&self) -> rusqlite::Result<()> {
        let end = self.now.plus(self.take.lease);
        set_end(self.connection, self.queue, self.take.token.as_str(), end)
    }

    fn prepare(&self, sql: &str) -> rusqlite::Result<CachedStatement<'_>> {
        self.connection.prepare_cached(sql)
    }
}

/// Row numbers as one parameter.
pub(super) fn list(rows: impl Iterator<Item = i64>) -> String {
    let rows: Vec<_> = rows.map(|row| row.to_string()).collect();
    format!("[{}]", rows.join(","))
}

pub(super) fn set_end(
    connection: &Connection,
    queue: &str,
    token: &str,
    end: Timestamp,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "INSERT INTO hapax_leases (queue, token, ends_at) VALUES (?1, ?2, ?3) \
             ON CONFLICT DO UPDATE SET ends_at = excluded.ends_at",
        )?
        .execute(params![queue, token, stored(end.0)])
        .map(drop)
}
