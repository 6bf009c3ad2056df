//! Extending, settling and giving back claims, many steps in one statement.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimRow};
use hapax_core::{GiveBack, Key, Step, Timestamp, Token};
use tokio_postgres::types::Type;

use crate::batch::BatchOperation;
use crate::connect::session::{Sql, SqlSession};
use crate::error::{StatementError, corrupt};
use crate::row::{self, KeyColumns};
use crate::wake::WakeNotifier;

const STEP: Sql = Sql {
    text: include_str!("../sql/step.sql"),
    types: &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
    ],
};

#[derive(Clone)]
pub(crate) struct StepCall {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) kind: StepKind,
}

#[derive(Clone)]
pub(crate) enum StepKind {
    Extend(Duration),
    Settle(Bytes),
    GiveBack(GiveBack),
}

impl StepKind {
    /// The code in `step.sql`: the phase to come, or 3 to delete the row.
    fn code(&self) -> i16 {
        match self {
            Self::Extend(_) => 0,
            Self::Settle(_) => 1,
            Self::GiveBack(GiveBack::Keep) => 2,
            Self::GiveBack(GiveBack::Forget) => 3,
        }
    }

    fn lease(&self) -> i64 {
        if let Self::Extend(lease) = self { row::duration(*lease) } else { 0 }
    }

    fn value(&self) -> &[u8] {
        if let Self::Settle(value) = self { value } else { &[] }
    }

    fn decide(&self, row: Option<&ClaimRow>, token: &Token, now: Timestamp) -> ClaimChange {
        match self {
            Self::Extend(lease) => claim_rules::extend(row, token, *lease, now),
            Self::Settle(value) => claim_rules::settle(row, token, value, now),
            Self::GiveBack(how) => claim_rules::give_back(row, token, *how, now),
        }
    }
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
        item.kind.value().len()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        items: &[StepCall],
        answers: &mut [Option<StepAnswer>],
    ) -> Result<(), StatementError> {
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
        if matches!(answer, Some(Step::Done(_))) && !matches!(item.kind, StepKind::Extend(_)) {
            wakes.wake(&item.key);
        }
    }
}

async fn run_steps<S: SqlSession>(
    session: &mut S,
    items: &[StepCall],
    round: &[usize],
    answers: &mut [Option<StepAnswer>],
) -> Result<(), StatementError> {
    let calls = || round.iter().map(|i| &items[*i]);
    let mut keys = KeyColumns::default();
    calls().for_each(|item| keys.push(&item.key));
    let tokens: Vec<&[u8]> = calls().map(|item| item.token.as_str().as_bytes()).collect();
    let kinds: Vec<i16> = calls().map(|item| item.kind.code()).collect();
    let leases: Vec<i64> = calls().map(|item| item.kind.lease()).collect();
    let values: Vec<&[u8]> = calls().map(|item| item.kind.value()).collect();
    let rows = session
        .rows(
            &STEP,
            &[
                &keys.tenants,
                &keys.kinds,
                &keys.scopes,
                &keys.names,
                &keys.digests,
                &tokens,
                &kinds,
                &leases,
                &values,
            ],
        )
        .await?;
    for found in &rows {
        let call = *round.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let item = &items[call];
        let row = row::claim(found)?;
        let now = row::timestamp(found, "now")?;
        answers[call] = match item.kind.decide(row.as_ref(), &item.token, now) {
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
