//! Leases of items, from the first to the last step.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use hapax_core::queue::{Dead, Depth, Item, ItemId, Leased, Outcome, QueueName, Resolved, Take};
use hapax_core::{Fence, Key, Tenant, Token};
use serde_json::value::RawValue;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::error::{Failure, corrupt};
use crate::row;
use crate::session::{Row, Session, Sql};

const LEASE: Sql = Sql {
    text: "SELECT * FROM hapax_lease($1, $2, $3, $4)",
    types: &[Type::TEXT, Type::BYTEA, Type::INT8, Type::INT8],
};

const RENEW: Sql = Sql {
    text: "UPDATE hapax_leases SET until = clock_timestamp() + $3 * interval '1 millisecond' \
           WHERE queue = $1 AND token = $2 RETURNING cardinality(seqs)::bigint AS held",
    types: &[Type::TEXT, Type::BYTEA, Type::INT8],
};

const RESOLVE: Sql = Sql {
    text: "SELECT hapax_resolve($1, $2, $3, $4, $5, $6) AS done",
    types: &[
        Type::TEXT,
        Type::BYTEA,
        Type::UUID_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT_ARRAY,
    ],
};

const DEPTH: Sql = Sql { text: include_str!("sql/depth.sql"), types: &[Type::TEXT, Type::TEXT] };

const DEAD: Sql = Sql {
    text: include_str!("sql/dead.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::UUID, Type::INT8],
};

const REQUEUE: Sql = Sql {
    text: "UPDATE hapax_outbox SET phase = 0, due_at = NULL, attempts = 0, reason = NULL \
           WHERE queue = $1 AND id = $3 AND (phase = 3 OR phase = 4) \
             AND ($2 IS NULL OR tenant = $2) RETURNING 1",
    types: &[Type::TEXT, Type::TEXT, Type::UUID],
};

const DISCARD: Sql = Sql {
    text: "DELETE FROM hapax_outbox WHERE queue = $1 AND id = $3 AND (phase = 3 OR phase = 4) \
             AND ($2 IS NULL OR tenant = $2) RETURNING 1",
    types: &[Type::TEXT, Type::TEXT, Type::UUID],
};

/// What is due; `None` where nothing was found although there may be something.
pub(crate) async fn lease<S: Session>(
    session: &mut S,
    queue: &QueueName,
    take: &Take,
) -> Result<Option<Vec<Leased>>, Failure> {
    let (token, at_most) =
        (take.token.as_str().as_bytes(), row::signed(take.at_most.max(1) as u64));
    let lease = row::brief(take.lease);
    let rows = session.rows(&LEASE, &[&queue.as_str(), &token, &at_most, &lease]).await?;
    let mut leased = Vec::with_capacity(rows.len());
    for row in &rows {
        let Some(seq) = row.try_get::<Option<i64>>("seq")? else { return Ok(None) };
        leased.push((seq, handed_out(row)?));
    }
    leased.sort_unstable_by_key(|(seq, _)| *seq);
    Ok(Some(leased.into_iter().map(|(_, leased)| leased).collect()))
}

fn handed_out(row: &Row) -> Result<Leased, Failure> {
    let tenant = Key::stored(row.try_get("tenant")?, "record", "", "");
    let item = Item {
        id: ItemId(row.try_get("id")?),
        tenant: tenant.ok_or_else(|| corrupt("a tenant"))?.tenant().clone(),
        topic: row.try_get::<&str>("topic")?.into(),
        key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
        payload: row::bytes(row, "payload")?,
        content_type: row.try_get::<Option<&str>>("content_type")?.map(Arc::from),
        headers: row.try_get::<Option<&str>>("headers")?.map(headers).unwrap_or_default(),
        delay: Duration::ZERO,
    };
    let attempt: i32 = row.try_get("attempt")?;
    // Enqueued at a moment that the server's clock went back from.
    let age: i64 = row.try_get("age")?;
    Ok(Leased {
        item,
        attempt: attempt.unsigned_abs(),
        fence: Fence(row::number(row, "fence")?),
        age: Duration::from_millis(u64::try_from(age).unwrap_or(0)),
    })
}

/// Whoever writes plain SQL may have written numbers, or JSON that is deeper than we follow: what is
/// no text travels as it is, and is not looked into. A row that could not be read would stop its
/// whole queue.
fn headers(json: &str) -> BTreeMap<String, String> {
    let parsed: BTreeMap<String, &RawValue> = serde_json::from_str(json).unwrap_or_default();
    let plain = |value: &RawValue| {
        serde_json::from_str(value.get()).unwrap_or_else(|_| value.get().to_owned())
    };
    parsed.into_iter().map(|(name, value)| (name, plain(value))).collect()
}

pub(crate) async fn renew<S: Session>(
    session: &mut S,
    queue: &QueueName,
    token: &Token,
    lease: Duration,
) -> Result<u64, Failure> {
    let (token, lease) = (token.as_str().as_bytes(), row::brief(lease));
    let rows = session.rows(&RENEW, &[&queue.as_str(), &token, &lease]).await?;
    rows.iter().map(|row| row::number(row, "held")).sum()
}

pub(crate) async fn resolve<S: Session>(
    session: &mut S,
    queue: &QueueName,
    token: &Token,
    outcomes: &[(ItemId, Outcome)],
) -> Result<Vec<Resolved>, Failure> {
    // The first word about an item counts.
    let mut words: HashMap<ItemId, &Outcome> = HashMap::new();
    let mut first = Vec::with_capacity(outcomes.len());
    for (id, outcome) in outcomes {
        words.entry(*id).or_insert_with(|| {
            first.push((*id, outcome));
            outcome
        });
    }
    let ids: Vec<Uuid> = first.iter().map(|(id, _)| id.0).collect();
    let kinds: Vec<i16> = first.iter().map(|(_, outcome)| kind(outcome)).collect();
    let times: Vec<i64> = first.iter().map(|(_, outcome)| row::brief(time(outcome))).collect();
    let reasons: Vec<Option<&str>> = first.iter().map(|(_, outcome)| reason(outcome)).collect();
    let (name, token) = (queue.as_str(), token.as_str().as_bytes());
    let rows = session.rows(&RESOLVE, &[&name, &token, &ids, &kinds, &times, &reasons]).await?;
    let answer = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
    let done: HashMap<Uuid, bool> =
        ids.into_iter().zip(answer.try_get::<Vec<bool>>("done")?).collect();
    let told = |(id, outcome): &(ItemId, Outcome)| {
        let counted = words.get(id).is_some_and(|word| std::ptr::eq(*word, outcome));
        let repeated = is_ack(outcome) && words.get(id).is_some_and(|word| is_ack(word));
        match done.get(&id.0) {
            Some(true) if counted || repeated => Resolved::Done,
            _ => Resolved::Lost,
        }
    };
    Ok(outcomes.iter().map(told).collect())
}

fn is_ack(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Ack { .. })
}

/// The number that the function knows it by.
fn kind(outcome: &Outcome) -> i16 {
    match outcome {
        Outcome::Ack { remember } => i16::from(!remember.is_zero()),
        Outcome::Retry { counts: true, .. } => 2,
        Outcome::Retry { counts: false, .. } => 3,
        Outcome::Bury { blocks: true, .. } => 4,
        Outcome::Bury { blocks: false, .. } => 5,
    }
}

fn time(outcome: &Outcome) -> Duration {
    match outcome {
        Outcome::Ack { remember } => *remember,
        Outcome::Retry { after, .. } => *after,
        Outcome::Bury { .. } => Duration::ZERO,
    }
}

fn reason(outcome: &Outcome) -> Option<&str> {
    match outcome {
        Outcome::Ack { .. } => None,
        Outcome::Retry { reason, .. } | Outcome::Bury { reason, .. } => Some(reason),
    }
}

pub(crate) async fn depth<S: Session>(
    session: &mut S,
    queue: &QueueName,
    whose: Option<&Tenant>,
) -> Result<Depth, Failure> {
    let rows = session.rows(&DEPTH, &[&queue.as_str(), &whose.map(Tenant::as_str)]).await?;
    let found = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
    let in_flight = row::number(found, "in_flight")?;
    let oldest: Option<i64> = found.try_get("oldest")?;
    Ok(Depth {
        waiting: row::number(found, "here")?.saturating_sub(in_flight),
        in_flight,
        dead: row::number(found, "dead")?,
        oldest_age: oldest.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0))),
    })
}

pub(crate) async fn dead<S: Session>(
    session: &mut S,
    queue: &QueueName,
    whose: Option<&Tenant>,
    after: Option<ItemId>,
    at_most: u32,
) -> Result<Vec<Dead>, Failure> {
    let (whose, after) = (whose.map(Tenant::as_str), after.map(|id| id.0));
    let rows = session.rows(&DEAD, &[&queue.as_str(), &whose, &after, &i64::from(at_most)]).await?;
    let letter = |row: &Row| {
        let attempts: i32 = row.try_get("attempts")?;
        Ok(Dead {
            id: ItemId(row.try_get("id")?),
            key: row.try_get::<Option<&str>>("key")?.map(Arc::from),
            attempts: attempts.unsigned_abs(),
            reason: row.try_get::<Option<&str>>("reason")?.unwrap_or_default().into(),
            at: row::timestamp(row, "died_at")?,
        })
    };
    rows.iter().map(letter).collect()
}

pub(crate) async fn requeue<S: Session>(
    session: &mut S,
    queue: &QueueName,
    whose: Option<&Tenant>,
    id: ItemId,
) -> Result<bool, Failure> {
    let rows =
        session.rows(&REQUEUE, &[&queue.as_str(), &whose.map(Tenant::as_str), &id.0]).await?;
    Ok(!rows.is_empty())
}

pub(crate) async fn discard<S: Session>(
    session: &mut S,
    queue: &QueueName,
    whose: Option<&Tenant>,
    id: ItemId,
) -> Result<bool, Failure> {
    let rows =
        session.rows(&DISCARD, &[&queue.as_str(), &whose.map(Tenant::as_str), &id.0]).await?;
    Ok(!rows.is_empty())
}
