//! Handing out items under a lease. Ready items have an index of their own, oldest first, which
//! leaves out items that wait behind another of their key: a lease reads the items that it hands out,
//! and one more of each key.

use std::collections::BTreeSet;

use hapax_core::queue::{LeaseRequest, LeasedItem, QueueName};
use hapax_core::{StoreResult, Timestamp};
use rusqlite::params;

use super::item;
use crate::session::{Session, UnsignedColumns, to_i64};

/// A lease ends with the item that brings it to this many bytes.
const MAX_BYTES: usize = 8 << 20;
/// How many due or released items one lease makes ready.
const MAX_MADE_READY: usize = 1000;

pub(crate) fn lease(
    session: Session<'_>,
    queue: &QueueName,
    take: &LeaseRequest,
) -> StoreResult<Vec<LeasedItem>> {
    let call = LeaseCall { session, queue: queue.as_str(), take, now: session.now()? };
    call.run()
}

struct LeaseCall<'a> {
    session: Session<'a>,
    queue: &'a str,
    take: &'a LeaseRequest,
    now: Timestamp,
}

impl LeaseCall<'_> {
    fn run(&self) -> StoreResult<Vec<LeasedItem>> {
        let held = self.held_by_token()?;
        if !held.is_empty() {
            return Ok(held);
        }
        self.release_ended_leases()?;
        self.make_due_ready()?;
        let mut leased = self.pick()?;
        if leased.is_empty() {
            return Ok(Vec::new());
        }
        let fence = self.session.next_sequence()?;
        self.mark_leased(fence, &leased)?;
        for (_, leased) in &mut leased {
            leased.attempt += 1;
            leased.fence.0 = fence;
        }
        Ok(leased.into_iter().map(|(_, leased)| leased).collect())
    }

    /// The items that this token already holds, with a renewed lease: the answer to a retried call
    /// whose first answer was lost.
    fn held_by_token(&self) -> StoreResult<Vec<LeasedItem>> {
        let token = self.take.token.as_str();
        let sql = "SELECT ends_at FROM hapax_leases WHERE queue = ?1 AND token = ?2";
        let ends_at = self.session.first(sql, [self.queue, token], |row| row.unsigned(0))?;
        match ends_at {
            None => return Ok(Vec::new()),
            Some(end) if end <= self.now.0 => {
                self.release(token)?;
                return Ok(Vec::new());
            }
            Some(_) => self.renew()?,
        }
        let sql = format!(
            "SELECT {} FROM hapax_outbox \
             WHERE token = ?1 AND queue = ?2 AND state <= 3 AND state = 3 ORDER BY seq",
            item::COLUMNS
        );
        self.session.all(&sql, [token, self.queue], |row| item::decode(row, self.session.wall()))
    }

    /// Makes the items of ended leases ready. Their tokens stay: a late outcome counts until the item
    /// is leased again.
    fn release_ended_leases(&self) -> StoreResult<()> {
        let ended: Vec<String> = self.session.all(
            "SELECT token FROM hapax_leases WHERE queue = ?1 AND ends_at <= ?2 LIMIT 100",
            params![self.queue, to_i64(self.now.0)],
            |row| row.get(0),
        )?;
        let mut released = 0;
        for token in ended {
            if released < MAX_MADE_READY {
                released += self.release(&token)?;
            }
        }
        Ok(())
    }

    fn release(&self, token: &str) -> StoreResult<usize> {
        let delete = "DELETE FROM hapax_leases WHERE queue = ?1 AND token = ?2";
        self.session.execute(delete, [self.queue, token])?;
        self.session.execute(
            "UPDATE hapax_outbox AS o SET state = CASE WHEN EXISTS ( \
                 SELECT 1 FROM hapax_outbox AS e \
                 WHERE e.queue = o.queue AND e.tenant = o.tenant AND e.key = o.key \
                   AND e.state <= 4 AND e.seq < o.seq) THEN 2 ELSE 0 END \
             WHERE o.token = ?1 AND o.queue = ?2 AND o.state <= 3 AND o.state = 3",
            [token, self.queue],
        )
    }

    /// Makes delayed items ready whose time has come.
    fn make_due_ready(&self) -> StoreResult<usize> {
        self.session.execute(
            "UPDATE hapax_outbox SET state = 0 WHERE seq IN ( \
                 SELECT seq FROM hapax_outbox \
                 WHERE queue = ?1 AND state = 1 AND deliver_after <= ?2 \
                 ORDER BY deliver_after LIMIT ?3)",
            params![self.queue, to_i64(self.now.0), MAX_MADE_READY as i64],
        )
    }

    /// Picks ready items, oldest first, and behind each of them the next one of its key.
    fn pick(&self) -> StoreResult<Vec<(i64, LeasedItem)>> {
        let mut candidates: BTreeSet<i64> = self.session.all(
            "SELECT seq FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND state = 0 ORDER BY seq LIMIT ?2",
            params![self.queue, to_i64(self.take.max_items as u64)],
            |row| row.get(0),
        )?;
        let (mut picked, mut bytes) = (Vec::new(), 0);
        while picked.len() < self.take.max_items
            && bytes < MAX_BYTES
            && let Some(seq) = candidates.pop_first()
        {
            let sql = format!("SELECT {} FROM hapax_outbox WHERE seq = ?1", item::COLUMNS);
            let leased =
                self.session.one(&sql, [seq], |row| item::decode(row, self.session.wall()))?;
            bytes += leased.item.payload.len();
            picked.push((seq, leased));
            candidates.extend(self.follower(seq)?);
        }
        Ok(picked)
    }

    /// The next item of the same key, if it waits for nothing but this one. Compared in SQL, because a
    /// foreign program's key need not be valid UTF-8.
    fn follower(&self, seq: i64) -> StoreResult<Option<i64>> {
        let next: Option<(i64, bool)> = self.session.first(
            "SELECT next.seq, next.state = 2 AND coalesce(next.deliver_after, 0) <= ?2 \
             FROM hapax_outbox AS this JOIN hapax_outbox AS next \
               ON next.queue = this.queue AND next.tenant = this.tenant AND next.key = this.key \
             WHERE this.seq = ?1 AND next.state <= 4 AND next.seq > ?1 \
             ORDER BY next.seq LIMIT 1",
            params![seq, to_i64(self.now.0)],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        Ok(next.filter(|(_, waits)| *waits).map(|(seq, _)| seq))
    }

    /// One statement for all rows: a statement per row would write a statement journal each.
    fn mark_leased(&self, fence: u64, picked: &[(i64, LeasedItem)]) -> StoreResult<()> {
        let rows = json_list(picked.iter().map(|(seq, _)| *seq));
        self.session.execute(
            "UPDATE hapax_outbox SET state = 3, token = ?2, fence = ?3, attempts = attempts + 1, \
                    deliver_after = NULL WHERE seq IN (SELECT value FROM json_each(?1))",
            params![rows, self.take.token.as_str(), to_i64(fence)],
        )?;
        self.renew()
    }

    fn renew(&self) -> StoreResult<()> {
        let end = self.now.plus(self.take.lease);
        set_lease_end(self.session, self.queue, self.take.token.as_str(), end)
    }
}

/// Row numbers as one JSON parameter.
pub(super) fn json_list(rows: impl Iterator<Item = i64>) -> String {
    let rows: Vec<_> = rows.map(|row| row.to_string()).collect();
    format!("[{}]", rows.join(","))
}

pub(super) fn set_lease_end(
    session: Session<'_>,
    queue: &str,
    token: &str,
    end: Timestamp,
) -> StoreResult<()> {
    let sql = "INSERT INTO hapax_leases (queue, token, ends_at) VALUES (?1, ?2, ?3) \
               ON CONFLICT DO UPDATE SET ends_at = excluded.ends_at";
    session.execute(sql, params![queue, token, to_i64(end.0)]).map(drop)
}
