//! Renewing a lease, and reporting what became of the leased items.

use std::collections::HashMap;
use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{ItemId, Outcome, QueueName, Resolved};
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::connect::session::{Session, Sql};
use crate::error::{Failure, corrupt};
use crate::row;

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
