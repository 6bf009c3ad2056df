//! Renewing a lease, and reporting what became of the leased items.

use std::collections::HashMap;
use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{ItemId, ItemOutcome, QueueName, Resolved, reasons};
use uuid::Uuid;

use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::row;

const RENEW: &str = "UPDATE hapax_leases SET until = clock_timestamp() + $3 * interval '1 millisecond' \
     WHERE queue = $1 AND token = $2 RETURNING cardinality(seqs)::bigint AS held";

/// As `sql/resolve.sql`, where nothing failed.
const RESOLVE_ACKS: &str = "SELECT hapax_resolve($1, $2, $3, $4, $5, $6) AS done";

pub(crate) async fn renew<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    token: &Token,
    lease: Duration,
) -> SqlResult<u64> {
    let (token, lease) = (token.as_str().as_bytes(), row::interval_millis(lease));
    let rows = session.rows(RENEW, &[&queue.as_str(), &token, &lease]).await?;
    rows.iter().map(|row| row::number(row, "held")).sum()
}

pub(crate) async fn resolve<S: SqlSession>(
    session: &mut S,
    queue: &QueueName,
    token: &Token,
    outcomes: &[(ItemId, ItemOutcome)],
) -> SqlResult<Vec<Resolved>> {
    // Only the first outcome of an item counts.
    let mut first_outcomes: HashMap<ItemId, &ItemOutcome> = HashMap::new();
    let mut first = Vec::with_capacity(outcomes.len());
    for (id, outcome) in outcomes {
        first_outcomes.entry(*id).or_insert_with(|| {
            first.push((*id, outcome));
            outcome
        });
    }
    let ids: Vec<Uuid> = first.iter().map(|(id, _)| id.0).collect();
    let codes: Vec<i16> = first.iter().map(|(_, outcome)| outcome_code(outcome)).collect();
    let times: Vec<i64> =
        first.iter().map(|(_, outcome)| row::interval_millis(time(outcome))).collect();
    let reasons: Vec<Option<String>> = first.iter().map(|(_, outcome)| reason(outcome)).collect();
    let sql = match reasons.iter().any(Option::is_some) {
        true => include_str!("../sql/resolve.sql"),
        false => RESOLVE_ACKS,
    };
    let (name, token) = (queue.as_str(), token.as_str().as_bytes());
    let rows = session.rows(sql, &[&name, &token, &ids, &codes, &times, &reasons]).await?;
    let done: HashMap<Uuid, bool> =
        ids.into_iter().zip(row::only(&rows)?.try_get::<Vec<bool>>("done")?).collect();
    let answer = |(id, outcome): &(ItemId, ItemOutcome)| {
        let counted = first_outcomes.get(id).is_some_and(|first| std::ptr::eq(*first, outcome));
        let repeated = is_ack(outcome) && first_outcomes.get(id).is_some_and(|first| is_ack(first));
        match done.get(&id.0) {
            Some(true) if counted || repeated => Resolved::Done,
            _ => Resolved::Lost,
        }
    };
    Ok(outcomes.iter().map(answer).collect())
}

fn is_ack(outcome: &ItemOutcome) -> bool {
    matches!(outcome, ItemOutcome::Ack { .. })
}

/// The code of `hapax_resolve`.
fn outcome_code(outcome: &ItemOutcome) -> i16 {
    match outcome {
        ItemOutcome::Ack { retention } => i16::from(!retention.is_zero()),
        ItemOutcome::Retry { counts: true, keeps_place: true, .. } => 2,
        ItemOutcome::Retry { counts: false, keeps_place: true, .. } => 3,
        ItemOutcome::Bury { blocks: true, .. } => 4,
        ItemOutcome::Bury { blocks: false, .. } => 5,
        ItemOutcome::Retry { counts: true, keeps_place: false, .. } => 6,
        ItemOutcome::Retry { counts: false, keeps_place: false, .. } => 7,
    }
}

fn time(outcome: &ItemOutcome) -> Duration {
    match outcome {
        ItemOutcome::Ack { retention } => *retention,
        ItemOutcome::Retry { after, .. } => *after,
        ItemOutcome::Bury { .. } => Duration::ZERO,
    }
}

fn reason(outcome: &ItemOutcome) -> Option<String> {
    match outcome {
        ItemOutcome::Ack { .. } => None,
        ItemOutcome::Retry { reason, .. } | ItemOutcome::Bury { reason, .. } => {
            Some(reasons::one_line(reason))
        }
    }
}
