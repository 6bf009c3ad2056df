//! Extending, settling and giving back claims, many steps in one statement.

use std::collections::HashSet;

use hapax_core::claim_rules::{self, ClaimChange};
use hapax_core::{ClaimStep, Fence, GiveBack, Key, Step, Token};

use crate::batch::BatchOperation;
use crate::connect::session::SqlSession;
use crate::error::{SqlResult, corrupt};
use crate::row::{self, KeyParams};
use crate::wake::WakeNotifier;

const STEP: &str = include_str!("../sql/step.sql");
const FOUND: &str = include_str!("../sql/step_found.sql");

#[derive(Clone)]
pub(crate) struct StepCall {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) step: ClaimStep,
}

/// The code in `step.sql`: the phase to come, or 3 to delete the row.
pub(super) fn code(step: &ClaimStep) -> i16 {
    match step {
        ClaimStep::Extend(_) => 0,
        ClaimStep::Settle(_) => 1,
        ClaimStep::GiveBack(GiveBack::Keep) => 2,
        ClaimStep::GiveBack(GiveBack::Forget) => 3,
    }
}

pub(super) fn lease(step: &ClaimStep) -> i64 {
    if let ClaimStep::Extend(lease) = step { row::duration(*lease) } else { 0 }
}

pub(super) fn value(step: &ClaimStep) -> &[u8] {
    if let ClaimStep::Settle(value) = step { value } else { &[] }
}

/// `None` if another transaction holds the key's lock.
pub(crate) type StepAnswer = Option<Step>;

pub(crate) struct StepBatch;

impl BatchOperation for StepBatch {
    type Item = StepCall;
    type Answer = StepAnswer;

    fn conflict_key(item: &StepCall) -> u64 {
        item.key.digest()
    }

    fn bytes(item: &StepCall) -> usize {
        value(&item.step).len()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        items: &[StepCall],
        answers: &mut [Option<StepAnswer>],
    ) -> SqlResult<()> {
        loop {
            // One statement can change a row only once; further steps on a key go into the next round.
            let mut keys = HashSet::new();
            let round: Vec<usize> = (0..items.len())
                .filter(|i| answers[*i].is_none() && keys.insert(&items[*i].key))
                .collect();
            if round.is_empty() {
                return Ok(());
            }
            run_steps(session, items, &round, answers).await?;
        }
    }

    fn after_commit(wakes: &WakeNotifier, item: &StepCall, answer: &StepAnswer) {
        if matches!(answer, Some(Step::Done(_))) && !matches!(item.step, ClaimStep::Extend(_)) {
            wakes.wake(&item.key);
        }
    }
}

async fn run_steps<S: SqlSession>(
    session: &mut S,
    items: &[StepCall],
    round: &[usize],
    answers: &mut [Option<StepAnswer>],
) -> SqlResult<()> {
    let calls = || round.iter().map(|i| &items[*i]);
    let keys = KeyParams::many(calls().map(|item| &item.key));
    let tokens: Vec<&[u8]> = calls().map(|item| item.token.as_str().as_bytes()).collect();
    let kinds: Vec<i16> = calls().map(|item| code(&item.step)).collect();
    let leases: Vec<i64> = calls().map(|item| lease(&item.step)).collect();
    let values: Vec<&[u8]> = calls().map(|item| value(&item.step)).collect();
    let params = keys.with(&[&tokens, &kinds, &leases, &values]);
    let mut undone: HashSet<usize> = round.iter().copied().collect();
    let mut locked = HashSet::new();
    for row in &session.rows(STEP, &params).await? {
        let call = *round.get(row::index(row)?).ok_or_else(|| corrupt("an ordinal"))?;
        if row.try_get::<Option<i64>>("fence")?.is_none() {
            locked.insert(call);
        } else if undone.remove(&call) {
            answers[call] = Some(Some(Step::Done(Fence(row::number(row, "fence")?))));
        }
    }
    if undone.is_empty() {
        return Ok(());
    }
    let undone: Vec<usize> = undone.into_iter().collect();
    explain_undone(session, items, &undone, &locked, answers).await
}

/// Answers the steps that changed nothing: repeated ones, those whose claim is not the caller's any more, and
/// those whose key is locked. A step that could be done now met a change in between, and stays unanswered for the
/// next round.
async fn explain_undone<S: SqlSession>(
    session: &mut S,
    items: &[StepCall],
    undone: &[usize],
    locked: &HashSet<usize>,
    answers: &mut [Option<StepAnswer>],
) -> SqlResult<()> {
    let keys = KeyParams::many(undone.iter().map(|i| &items[*i].key));
    for found in &session.rows(FOUND, &keys.columns()).await? {
        let call = *undone.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let (item, row) = (&items[call], row::claim(found)?);
        let now = row::timestamp(found, "now")?;
        answers[call] = match claim_rules::step(row.as_ref(), &item.token, &item.step, now) {
            ClaimChange::Nothing(step) => Some(Some(step)),
            ClaimChange::Write(_) | ClaimChange::Delete(_) => {
                locked.contains(&call).then_some(None)
            }
        };
    }
    Ok(())
}
