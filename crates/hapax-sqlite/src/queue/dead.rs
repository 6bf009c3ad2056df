//! Dead letters, for an operator.

use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, ItemId, MAX_EXAMINED, QueueItem,
    QueueName, ReasonCounts, reasons,
};
use hapax_core::{StoreResult, Tenant, Timestamp};
use rusqlite::{Row, params};

use super::item;
use crate::session::{Session, UnsignedColumns};

pub(crate) fn dead(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    query: &DeadQuery,
) -> StoreResult<Vec<DeadLetter>> {
    let (queue, tenant) = (queue.as_str(), tenant.map(Tenant::as_str));
    let after = query.after.map(|id| id.to_string()).unwrap_or_default();
    let Some(reason) = query.reason.as_deref() else {
        return session.all(
            "SELECT id, key, attempts, reason, ended_at, topic FROM hapax_outbox \
             WHERE queue = ?1 AND state BETWEEN 4 AND 5 AND id > ?3 \
               AND (?2 IS NULL OR tenant = ?2) ORDER BY id LIMIT ?4",
            params![queue, tenant, after, query.at_most],
            decode_dead_letter,
        );
    };
    // The newest reason is the first line.
    session.all(
        "SELECT id, key, attempts, reason, ended_at, topic FROM hapax_outbox \
         WHERE queue = ?1 AND state BETWEEN 4 AND 5 AND id > ?3 \
           AND (?2 IS NULL OR tenant = ?2) \
           AND ?5 = CASE instr(reason, char(10)) WHEN 0 THEN reason \
                    ELSE coalesce(substr(reason, 1, instr(reason, char(10)) - 1), '') END \
         ORDER BY id LIMIT ?4",
        params![queue, tenant, after, query.at_most, reason],
        decode_dead_letter,
    )
}

fn decode_dead_letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let id = row.get_ref(0)?.as_str()?.parse();
    let stored = item::text(row.get_ref(3)?).unwrap_or_default();
    Ok(DeadLetter {
        id: ItemId(id.map_err(|_| rusqlite::Error::InvalidQuery)?),
        key: item::shared_text(row.get_ref(1)?),
        attempts: row.get(2)?,
        reason: reasons::newest(&stored).into(),
        errors: reasons::oldest_first(&stored),
        at: Timestamp(row.unsigned_or_null(4)?.unwrap_or(0)),
        topic: item::shared_text(row.get_ref(5)?).unwrap_or_default(),
    })
}

pub(crate) fn dead_reasons(
    session: Session<'_>,
    queue: &QueueName,
    tenant: Option<&Tenant>,
    at_most: u32,
) -> StoreResult<Vec<DeadReason>> {
    let mut counts = ReasonCounts::default();
    let count = |row: &Row<'_>| {
        let stored = item::text(row.get_ref(0)?).unwrap_or_default();
        let at = Timestamp(row.unsigned_or_null(1)?.unwrap_or(0));
        counts.add(reasons::newest(&stored), 1, [at; 2]);
        Ok(())
    };
    let params = params![queue.as_str(), tenant.map(Tenant::as_str), MAX_EXAMINED];
    // In the order of the table, because ids may be random; not through the index of dead letters.
    session.all::<(), ()>(
        "SELECT o.reason, o.ended_at FROM ( \
             SELECT seq, tenant FROM hapax_outbox \
             WHERE queue = ?1 AND state <= 5 AND state >= 4 LIMIT ?3) AS i \
         CROSS JOIN hapax_outbox AS o ON o.seq = i.seq WHERE ?2 IS NULL OR i.tenant = ?2",
        params,
        count,
    )?;
    Ok(counts.most_frequent(at_most))
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
