//! Renewing a lease, and reporting what became of the leased items: many calls in one statement.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{ItemId, ItemOutcome, QueueName, Resolved};
use uuid::Uuid;

use crate::batch::BatchOperation;
use crate::connect::session::{Params, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row;
use crate::wake::WakeNotifier;

const RENEW: &str = "UPDATE hapax_leases SET until = clock_timestamp() + $3 * interval '1 millisecond' \
     WHERE queue = $1 AND token = $2 RETURNING cardinality(seqs)::bigint AS held";

const RESOLVE: &str = "SELECT hapax_end_leases($1, $2, $3, $4, $5, $6, $7) AS done";

/// The weight of an outcome in a batch: about ten thousand go into one statement.
const OUTCOME_BYTES: usize = 400;

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

/// The outcomes of one call.
pub(crate) struct OutcomesCall {
    pub(crate) queue: QueueName,
    pub(crate) token: Token,
    pub(crate) outcomes: Vec<(ItemId, ItemOutcome)>,
}

pub(crate) struct ResolveBatch;

impl BatchOperation for ResolveBatch {
    type Item = OutcomesCall;
    type Answer = Vec<Resolved>;

    fn conflict_key(call: &OutcomesCall) -> u64 {
        let mut hasher = DefaultHasher::new();
        call.token.as_str().hash(&mut hasher);
        hasher.finish()
    }

    fn bytes(call: &OutcomesCall) -> usize {
        call.outcomes.len() * OUTCOME_BYTES
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        calls: &[OutcomesCall],
        answers: &mut [Option<Vec<Resolved>>],
    ) -> SqlResult<()> {
        loop {
            // One statement can end a lease only once; a second call of a token goes into the next round.
            let mut tokens = HashSet::new();
            let mut round: Vec<usize> = (0..calls.len())
                .filter(|i| answers[*i].is_none() && tokens.insert(calls[*i].token.as_str()))
                .collect();
            if round.is_empty() {
                return Ok(());
            }
            // Leases are locked in this order, so that a call that timed out and its repetition do not block each other.
            round.sort_unstable_by_key(|i| calls[*i].token.as_str());
            resolve(session, calls, &round, answers).await?;
        }
    }

    /// Items that waited behind these may be ready now.
    fn after_commit(wakes: &WakeNotifier, call: &OutcomesCall, _: &Vec<Resolved>) {
        call.queue.arrivals_key().iter().for_each(|key| wakes.wake(key));
    }
}

async fn resolve<S: SqlSession>(
    session: &mut S,
    calls: &[OutcomesCall],
    round: &[usize],
    answers: &mut [Option<Vec<Resolved>>],
) -> SqlResult<()> {
    let calls: Vec<_> = round.iter().map(|i| &calls[*i]).collect();
    let firsts: Vec<FirstOutcomes<'_>> = calls.iter().map(|call| first_outcomes(call)).collect();
    let queues: Vec<&str> = calls.iter().map(|call| call.queue.as_str()).collect();
    let tokens: Vec<&[u8]> = calls.iter().map(|call| call.token.as_str().as_bytes()).collect();
    let owned =
        || (1i32..).zip(&firsts).flat_map(|(owner, f)| f.rows.iter().map(move |r| (owner, r)));
    let owners: Vec<i32> = owned().map(|(owner, _)| owner).collect();
    let ids: Vec<Uuid> = owned().map(|(_, (id, _))| id.0).collect();
    let codes: Vec<i16> = owned().map(|(_, (_, outcome))| outcome_code(outcome)).collect();
    let times: Vec<i64> =
        owned().map(|(_, (_, outcome))| row::interval_millis(time(outcome))).collect();
    let reasons: Vec<Option<&str>> = owned().map(|(_, (_, outcome))| reason(outcome)).collect();
    let params: Params<'_> = &[&queues, &tokens, &owners, &ids, &codes, &times, &reasons];
    let rows = session.rows(RESOLVE, params).await?;
    let done: Vec<bool> = row::only(&rows)?.try_get("done")?;
    if done.len() != ids.len() {
        return Err(corrupt("the number of outcomes").into());
    }
    let mut done = &done[..];
    for (at, (call, first)) in round.iter().zip(calls.iter().zip(&firsts)) {
        let (own, others) = done.split_at(first.rows.len());
        done = others;
        answers[*at] =
            Some(call.outcomes.iter().enumerate().map(|(n, o)| first.answer(own, n, o)).collect());
    }
    Ok(())
}

/// The outcomes of a call that count: only the first one of an item does.
struct FirstOutcomes<'a> {
    rows: Vec<(ItemId, &'a ItemOutcome)>,
    /// For each outcome of the call its item's place in `rows`.
    places: Vec<usize>,
}

fn first_outcomes(call: &OutcomesCall) -> FirstOutcomes<'_> {
    let mut known = HashMap::with_capacity(call.outcomes.len());
    let mut rows = Vec::with_capacity(call.outcomes.len());
    let places: Vec<usize> = call
        .outcomes
        .iter()
        .map(|(id, outcome)| {
            *known.entry(*id).or_insert_with(|| {
                rows.push((*id, outcome));
                rows.len() - 1
            })
        })
        .collect();
    FirstOutcomes { rows, places }
}

impl FirstOutcomes<'_> {
    /// The answer to the `nth` outcome of the call, from those to `rows`. A repeated ack is done like the first.
    fn answer(&self, done: &[bool], nth: usize, (_, outcome): &(ItemId, ItemOutcome)) -> Resolved {
        let place = self.places[nth];
        let first = self.rows[place].1;
        let counts = std::ptr::eq(first, outcome) || is_ack(first) && is_ack(outcome);
        if done[place] && counts { Resolved::Done } else { Resolved::Lost }
    }
}

fn is_ack(outcome: &ItemOutcome) -> bool {
    matches!(outcome, ItemOutcome::Ack { .. })
}

/// The code of `hapax_end_leases`.
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

fn reason(outcome: &ItemOutcome) -> Option<&str> {
    match outcome {
        ItemOutcome::Ack { .. } => None,
        ItemOutcome::Retry { reason, .. } | ItemOutcome::Bury { reason, .. } => Some(reason),
    }
}
