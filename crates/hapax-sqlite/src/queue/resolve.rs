//! What a holder does with what it holds.

use std::collections::BTreeSet;
use std::time::Duration;

use hapax_core::queue::{ItemId, ItemOutcome, QueueName, Resolved};
use hapax_core::{Clock, StoreError, Timestamp, Token};
use rusqlite::{Connection, OptionalExtension, params};

use super::lease::{list, set_end};
use super::state;
use crate::row::{damaged, stored};

/// Makes the leases of everything that the token holds end `lease` from now. What lapsed, and was not
/// handed out since, is held again.
pub(crate) fn renew(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    token: &Token,
    lease: Duration,
) -> Result<u64, StoreError> {
    let end = clock.now().plus(lease);
    let renewed = || -> rusqlite::Result<u64> {
        let holder = [token.as_str(), queue.as_str()];
        let held: u64 = connection
            .prepare_cached(
                "SELECT count(*) FROM hapax_outbox \
                 WHERE token = ?1 AND queue = ?2 AND state <= 3 AND token IS NOT NULL",
            )?
            .query_row(holder, |row| row.get(0))?;
        if held > 0 {
            connection
                .prepare_cached(
                    "UPDATE hapax_outbox SET state = 3 WHERE token = ?1 AND queue = ?2 \
                       AND state <= 3 AND token IS NOT NULL AND state <> 3",
                )?
                .execute(holder)?;
            set_end(connection, queue.as_str(), token.as_str(), end)?;
        }
        Ok(held)
    };
    renewed().map_err(damaged)
}

pub(crate) fn resolve(
    connection: &Connection,
    clock: &dyn Clock,
    queue: &QueueName,
    token: &Token,
    outcomes: &[(ItemId, ItemOutcome)],
) -> Result<Vec<Resolved>, StoreError> {
    let (queue, token, now) = (queue.as_str(), token.as_str(), clock.now());
    let mut resolving = Resolving { connection, queue, token, now, acks: Acks::default() };
    let mut all = || -> rusqlite::Result<_> {
        let one = |(id, outcome): &(ItemId, ItemOutcome)| resolving.one(*id, outcome);
        let answers = outcomes.iter().map(one).collect::<Result<_, _>>()?;
        resolving.end_acks()?;
        resolving.end_lease()?;
        Ok(answers)
    };
    all().map_err(damaged)
}

struct Resolving<'a> {
    connection: &'a Connection,
    queue: &'a str,
    token: &'a str,
    now: Timestamp,
    acks: Acks,
}

/// Acks in a row, ended by one statement: each on its own would have to be able to undo itself.
#[derive(Default)]
struct Acks {
    remember: Duration,
    rows: BTreeSet<i64>,
}

impl Resolving<'_> {
    fn one(&mut self, id: ItemId, outcome: &ItemOutcome) -> rusqlite::Result<Resolved> {
        // What is asked about next may be among them.
        if !matches!(outcome, ItemOutcome::Ack { .. }) {
            self.end_acks()?;
        }
        let found: Option<(i64, i64, bool)> = self
            .connection
            .prepare_cached(
                "SELECT seq, state, coalesce(forget_at, 0) > ?4 FROM hapax_outbox \
                 WHERE queue = ?1 AND id = ?2 AND token = ?3",
            )?
            .query_row(params![self.queue, id.to_string(), self.token, stored(self.now.0)], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .optional()?;
        let seq = match (found, outcome) {
            (Some((seq, ..=state::IN_FLIGHT, _)), _) => seq,
            (Some((_, state::DONE, true)), ItemOutcome::Ack { .. }) => return Ok(Resolved::Done),
            _ => return Ok(Resolved::Lost),
        };
        match outcome {
            ItemOutcome::Ack { retention: remember } => return self.ack(seq, *remember),
            ItemOutcome::Retry { after, counts, reason } => {
                self.retry(seq, *after, *counts, reason)?
            }
            ItemOutcome::Bury { reason, blocks } => self.bury(seq, reason, *blocks)?,
        }
        Ok(Resolved::Done)
    }

    fn ack(&mut self, seq: i64, remember: Duration) -> rusqlite::Result<Resolved> {
        if remember != self.acks.remember {
            self.end_acks()?;
            self.acks.remember = remember;
        }
        let known = self.acks.rows.insert(seq) || !remember.is_zero();
        Ok(if known { Resolved::Done } else { Resolved::Lost })
    }

    fn end_acks(&mut self) -> rusqlite::Result<()> {
        let Acks { remember, rows } = std::mem::take(&mut self.acks);
        if rows.is_empty() {
            return Ok(());
        }
        let rows = list(rows.into_iter());
        if remember.is_zero() {
            self.connection
                .prepare_cached(
                    "DELETE FROM hapax_outbox WHERE seq IN (SELECT value FROM json_each(?1))",
                )?
                .execute([rows])?;
        } else {
            // Only who it was is remembered.
            self.connection
                .prepare_cached(
                    "UPDATE hapax_outbox SET state = 6, forget_at = ?2, payload = x'', \
                            headers = NULL, reason = NULL \
                     WHERE seq IN (SELECT value FROM json_each(?1))",
                )?
                .execute(params![rows, stored(self.now.plus(remember).0)])?;
        }
        Ok(())
    }

    fn retry(&self, seq: i64, after: Duration, counts: bool, reason: &str) -> rusqlite::Result<()> {
        let due = (!after.is_zero()).then(|| stored(self.now.plus(after).0));
        self.connection
            .prepare_cached(
                "UPDATE hapax_outbox AS o SET token = NULL, deliver_after = ?2, \
                        attempts = attempts - ?3, reason = ?4, \
                        state = CASE WHEN EXISTS ( \
                            SELECT 1 FROM hapax_outbox AS e WHERE e.queue = o.queue \
                              AND e.tenant = o.tenant AND e.key = o.key \
                              AND e.state <= 4 AND e.seq < o.seq) THEN 2 \
                        ELSE ?2 IS NOT NULL END \
                 WHERE seq = ?1",
            )?
            .execute(params![seq, due, !counts, reason])
            .map(drop)
    }

    fn bury(&self, seq: i64, reason: &str, blocks: bool) -> rusqlite::Result<()> {
        let state = if blocks { state::DEAD_AND_BLOCKS } else { state::DEAD };
        self.connection
            .prepare_cached(
                "UPDATE hapax_outbox SET token = NULL, state = ?2, reason = ?3, ended_at = ?4 \
                 WHERE seq = ?1",
            )?
            .execute(params![seq, state, reason, stored(self.now.0)])
            .map(drop)
    }

    /// The lease goes with the last item that it holds.
    fn end_lease(&self) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached(
                "DELETE FROM hapax_leases WHERE queue = ?1 AND token = ?2 AND NOT EXISTS ( \
                     SELECT 1 FROM hapax_outbox \
                     WHERE token = ?2 AND queue = ?1 AND state <= 3 AND token IS NOT NULL)",
            )?
            .execute([self.queue, self.token])
            .map(drop)
    }
}
