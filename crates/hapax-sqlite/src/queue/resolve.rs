//! Renewing a lease, and reporting what became of the leased items.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, QueueName, Resolved, reasons};
use hapax_core::{StoreResult, Timestamp, Token};
use rusqlite::params;

use super::lease::{json_list, set_lease_end};
use super::{item, state};
use crate::session::{Session, UnsignedColumns, to_i64};

/// Renews the lease of all items that the token holds. Items whose lease ran out, and that were not
/// leased again since, are held again.
pub(crate) fn renew(
    session: Session<'_>,
    queue: &QueueName,
    token: &Token,
    lease: Duration,
) -> StoreResult<u64> {
    let end = session.now()?.plus(lease);
    let holder = [token.as_str(), queue.as_str()];
    let held = session.one(
        "SELECT count(*) FROM hapax_outbox \
         WHERE token = ?1 AND queue = ?2 AND state <= 3 AND token IS NOT NULL",
        holder,
        |row| row.unsigned(0),
    )?;
    if held > 0 {
        session.execute(
            "UPDATE hapax_outbox SET state = 3 WHERE token = ?1 AND queue = ?2 \
               AND state <= 3 AND token IS NOT NULL AND state <> 3",
            holder,
        )?;
        set_lease_end(session, queue.as_str(), token.as_str(), end)?;
    }
    Ok(held)
}

pub(crate) fn resolve(
    session: Session<'_>,
    queue: &QueueName,
    token: &Token,
    outcomes: &[(ItemId, ItemOutcome)],
) -> StoreResult<Vec<Resolved>> {
    let (queue, token, now) = (queue.as_str(), token.as_str(), session.now()?);
    let mut call = ResolveCall { session, queue, token, now, acks: PendingAcks::default() };
    let one = |(id, outcome): &(ItemId, ItemOutcome)| call.resolve_item(*id, outcome);
    let answers = outcomes.iter().map(one).collect::<Result<_, _>>()?;
    call.write_acks()?;
    call.delete_empty_lease()?;
    Ok(answers)
}

struct ResolveCall<'a> {
    session: Session<'a>,
    queue: &'a str,
    token: &'a str,
    now: Timestamp,
    acks: PendingAcks,
}

/// Consecutive acks with one retention, written by one statement: a statement per ack would write a
/// statement journal each.
#[derive(Default)]
struct PendingAcks {
    retention: Duration,
    rows: BTreeSet<i64>,
}

impl ResolveCall<'_> {
    fn resolve_item(&mut self, id: ItemId, outcome: &ItemOutcome) -> StoreResult<Resolved> {
        // The item may be among the pending acks, whose rows are not written yet.
        if !matches!(outcome, ItemOutcome::Ack { .. }) {
            self.write_acks()?;
        }
        let found: Option<(i64, i64, bool, Option<String>)> = self.session.first(
            "SELECT seq, state, coalesce(forget_at, 0) > ?4, reason FROM hapax_outbox \
             WHERE queue = ?1 AND id = ?2 AND token = ?3",
            params![self.queue, id.to_string(), self.token, to_i64(self.now.0)],
            |row| {
                let stored = item::text(row.get_ref(3)?).map(Cow::into_owned);
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, stored))
            },
        )?;
        let (seq, stored) = match (found, outcome) {
            (Some((seq, ..=state::IN_FLIGHT, _, stored)), _) => (seq, stored),
            (Some((_, state::DONE, true, _)), ItemOutcome::Ack { .. }) => {
                return Ok(Resolved::Done);
            }
            _ => return Ok(Resolved::Lost),
        };
        let reasons = |reason: &str, counts| reasons::add(stored.as_deref(), reason, counts);
        match outcome {
            ItemOutcome::Ack { retention } => return self.ack(seq, *retention),
            ItemOutcome::Retry { after, counts, reason, keeps_place } => {
                if !keeps_place {
                    self.leave_key(seq)?;
                }
                self.retry(seq, *after, *counts, reasons(reason, *counts))?
            }
            ItemOutcome::Bury { reason, blocks } => {
                self.bury(seq, reasons(reason, true), *blocks)?
            }
        };
        Ok(Resolved::Done)
    }

    fn ack(&mut self, seq: i64, retention: Duration) -> StoreResult<Resolved> {
        if retention != self.acks.retention {
            self.write_acks()?;
            self.acks.retention = retention;
        }
        let known = self.acks.rows.insert(seq) || !retention.is_zero();
        Ok(if known { Resolved::Done } else { Resolved::Lost })
    }

    fn write_acks(&mut self) -> StoreResult<()> {
        let PendingAcks { retention, rows } = std::mem::take(&mut self.acks);
        if rows.is_empty() {
            return Ok(());
        }
        let rows = json_list(rows.into_iter());
        let written = if retention.is_zero() {
            let sql = "DELETE FROM hapax_outbox WHERE seq IN (SELECT value FROM json_each(?1))";
            self.session.execute(sql, [rows])
        } else {
            // Keep only the identity, to recognise a duplicate.
            self.session.execute(
                "UPDATE hapax_outbox SET state = 6, forget_at = ?2, payload = x'', \
                        headers = NULL, reason = NULL \
                 WHERE seq IN (SELECT value FROM json_each(?1))",
                params![rows, to_i64(self.now.plus(retention).0)],
            )
        };
        written.map(drop)
    }

    fn retry(
        &self,
        seq: i64,
        after: Duration,
        counts: bool,
        reasons: Option<String>,
    ) -> StoreResult<usize> {
        let due = (!after.is_zero()).then(|| to_i64(self.now.plus(after).0));
        self.session.execute(
            "UPDATE hapax_outbox AS o SET token = NULL, deliver_after = ?2, \
                    attempts = attempts - ?3, reason = ?4, \
                    state = CASE WHEN EXISTS ( \
                        SELECT 1 FROM hapax_outbox AS e WHERE e.queue = o.queue \
                          AND e.tenant = o.tenant AND e.key = o.key \
                          AND e.state <= 4 AND e.seq < o.seq) THEN 2 \
                    ELSE ?2 IS NOT NULL END \
             WHERE seq = ?1",
            params![seq, due, !counts, reasons],
        )
    }

    /// Takes the item out of the order of its key. It becomes a dead letter for a moment, because then
    /// a trigger lets the next item of the key forward.
    fn leave_key(&self, seq: i64) -> StoreResult<usize> {
        self.session.execute("UPDATE hapax_outbox SET state = 5 WHERE seq = ?1", [seq])?;
        self.session.execute("UPDATE hapax_outbox SET key = NULL WHERE seq = ?1", [seq])
    }

    fn bury(&self, seq: i64, reasons: Option<String>, blocks: bool) -> StoreResult<usize> {
        let state = if blocks { state::DEAD_AND_BLOCKS } else { state::DEAD };
        let sql = "UPDATE hapax_outbox SET token = NULL, state = ?2, reason = ?3, ended_at = ?4 \
                   WHERE seq = ?1";
        self.session.execute(sql, params![seq, state, reasons, to_i64(self.session.wall().0)])
    }

    /// Deletes the lease once it holds no item.
    fn delete_empty_lease(&self) -> StoreResult<usize> {
        self.session.execute(
            "DELETE FROM hapax_leases WHERE queue = ?1 AND token = ?2 AND NOT EXISTS ( \
                 SELECT 1 FROM hapax_outbox \
                 WHERE token = ?2 AND queue = ?1 AND state <= 3 AND token IS NOT NULL)",
            [self.queue, self.token],
        )
    }
}
