//! Extending, settling and giving back claims, many steps in one statement.

use std::collections::HashSet;

use hapax_core::claim_rules::{self, ClaimChange, ClaimRow};
use hapax_core::{ClaimStep, GiveBack, Key, Step, Token};

use crate::batch::BatchOperation;
use crate::connect::session::SqlSession;
use crate::error::{SqlResult, corrupt};
use crate::row::{self, KeyParams};
use crate::wake::WakeNotifier;

const STEP: &str = include_str!("../sql/step.sql");

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
    let rows = session.rows(STEP, &params).await?;
    for found in &rows {
        let call = *round.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let item = &items[call];
        let row = row::claim(found)?;
        let now = row::timestamp(found, "now")?;
        answers[call] = match claim_rules::step(row.as_ref(), &item.token, &item.step, now) {
            ClaimChange::Nothing(step) => Some(Some(step)),
            ClaimChange::Write(ClaimRow { fence, .. }) | ClaimChange::Delete(fence)
                if found.try_get::<Option<bool>>("done")?.unwrap_or(false) =>
            {
                Some(Some(Step::Done(fence)))
            }
            _ if !found.try_get::<bool>("mine")? => Some(None),
            // The row changed between the read and the write: read again in the next round.
            _ => None,
        };
    }
    Ok(())
}
