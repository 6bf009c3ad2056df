//! Owners' steps, many in one statement.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimRow};
use hapax_core::{GiveBack, Key, Step, Timestamp, Token};
use tokio_postgres::types::Type;

use crate::batch::Work;
use crate::connect::session::{Session, Sql};
use crate::error::{Failure, corrupt};
use crate::row::{self, Keys};
use crate::wake::Wakes;

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

/// One owner's step.
#[derive(Clone)]
pub(crate) struct Taken {
    pub(crate) key: Key,
    pub(crate) token: Token,
    pub(crate) act: Act,
}

#[derive(Clone)]
pub(crate) enum Act {
    Extend(Duration),
    Settle(Bytes),
    GiveBack(GiveBack),
}

impl Act {
    /// The number that the statement knows it by: the phase to come, or 3.
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

/// What became of it; `None` where another transaction holds the key's lock just now.
pub(crate) type Stepped = Option<Step>;

pub(crate) struct Stepping;

impl Work for Stepping {
    type Item = Taken;
    type Answer = Stepped;

    fn lane(item: &Taken) -> u64 {
        item.key.digest()
    }

    fn weight(item: &Taken) -> usize {
        item.act.value().len()
    }

    async fn run<S: Session>(
        session: &mut S,
        items: &[Taken],
        answers: &mut [Option<Stepped>],
    ) -> Result<(), Failure> {
        loop {
            // One statement changes a row once; the next step on the same key waits for a round.
            let mut keys = HashSet::new();
            let round: Vec<usize> = (0..items.len())
                .filter(|i| answers[*i].is_none() && keys.insert(&items[*i].key))
                .collect();
            if round.is_empty() {
                return Ok(());
            }
            take(session, items, &round, answers).await?;
        }
    }

    fn after(wakes: &Wakes, item: &Taken, answer: &Stepped) {
        if matches!(answer, Some(Step::Done(_))) && !matches!(item.act, Act::Extend(_)) {
            wakes.wake(&item.key);
        }
    }
}

async fn take<S: Session>(
    session: &mut S,
    items: &[Taken],
    round: &[usize],
    answers: &mut [Option<Stepped>],
) -> Result<(), Failure> {
    let taken = || round.iter().map(|i| &items[*i]);
    let mut keys = Keys::default();
    taken().for_each(|item| keys.push(&item.key));
    let tokens: Vec<&[u8]> = taken().map(|item| item.token.as_str().as_bytes()).collect();
    let acts: Vec<i16> = taken().map(|item| item.act.code()).collect();
    let leases: Vec<i64> = taken().map(|item| item.act.lease()).collect();
    let values: Vec<&[u8]> = taken().map(|item| item.act.value()).collect();
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
                &acts,
                &leases,
                &values,
            ],
        )
        .await?;
    for found in &rows {
        let owner = *round.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let item = &items[owner];
        let row = row::claim(found)?;
        let now = row::timestamp(found, "now")?;
        answers[owner] = match item.act.decide(row.as_ref(), &item.token, now) {
            ClaimChange::Nothing(step) => Some(Some(step)),
            ClaimChange::Write(ClaimRow { fence, .. }) | ClaimChange::Delete(fence)
                if found.try_get::<Option<bool>>("done")?.unwrap_or(false) =>
            {
                Some(Some(Step::Done(fence)))
            }
            _ if !found.try_get::<bool>("mine")? => Some(None),
            // It changed between the look and the write: look again.
            _ => None,
        };
    }
    Ok(())
}
