//! Claiming, many claims in one statement.

use std::collections::HashSet;
use std::time::Duration;

use hapax_core::claim_rules::{self, ClaimDecision, ClaimRow};
use hapax_core::{ClaimRequest, Claimed, Fence, Key, Ticket};

use crate::batch::BatchOperation;
use crate::connect::session::{SqlRow, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row::{self, KeyParams};

/// How often a lost race is run again. Each loss means that another claim succeeded.
const MAX_ROUNDS: usize = 8;

/// The `lease_left` of a claim in another open transaction, whose lease is not visible yet.
const OPEN_TRANSACTION: Duration = Duration::from_millis(100);

const CLAIM: &str = include_str!("../sql/claim.sql");
const REGRANT: &str = include_str!("../sql/regrant.sql");

pub(crate) struct ClaimCall {
    pub(crate) key: Key,
    pub(crate) ask: ClaimRequest,
}

pub(crate) struct ClaimBatch;

impl BatchOperation for ClaimBatch {
    type Item = ClaimCall;
    type Answer = Claimed;

    fn conflict_key(item: &ClaimCall) -> u64 {
        item.key.digest()
    }

    async fn run<S: SqlSession>(
        session: &mut S,
        items: &[ClaimCall],
        answers: &mut [Option<Claimed>],
    ) -> SqlResult<()> {
        for _ in 0..MAX_ROUNDS {
            let open: Vec<usize> = (0..items.len()).filter(|i| answers[*i].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let regrants = claim_vacant(session, items, &open, answers).await?;
            if !regrants.is_empty() {
                regrant(session, items, &regrants, answers).await?;
            }
        }
        for (item, answer) in items.iter().zip(answers) {
            answer.get_or_insert_with(|| busy(&item.ask));
        }
        Ok(())
    }
}

/// An existing row that is granted again.
struct Regrant {
    call: usize,
    row: ClaimRow,
    /// The attempt of a new grant; `None` renews the caller's own grant.
    attempt: Option<u32>,
}

/// Grants vacant keys, answers calls that need no write, and returns the rows to grant again. A call
/// that lost a race stays unanswered for the next round.
async fn claim_vacant<S: SqlSession>(
    session: &mut S,
    items: &[ClaimCall],
    open: &[usize],
    answers: &mut [Option<Claimed>],
) -> SqlResult<Vec<Regrant>> {
    let asked = || open.iter().map(|i| &items[*i]);
    let keys = KeyParams::many(asked().map(|item| &item.key));
    let tokens: Vec<&[u8]> = asked().map(|item| item.ask.token.as_str().as_bytes()).collect();
    let fingerprints: Vec<Option<&[u8]>> = asked().map(|item| fingerprint(&item.ask)).collect();
    let leases: Vec<i64> = asked().map(|item| row::duration(item.ask.lease)).collect();
    let retentions: Vec<i64> = asked().map(|item| row::duration(item.ask.retention)).collect();
    let params = keys.with(&[&tokens, &fingerprints, &leases, &retentions]);
    let rows = session.rows(CLAIM, &params).await?;
    let mut regrants = Vec::new();
    let mut taken = HashSet::new();
    for found in &rows {
        let call = *open.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let item = &items[call];
        if !found.try_get::<bool>("known")? {
            answers[call] = vacant_answer(found, &item.ask)?;
            continue;
        }
        let row = row::claim(found)?.ok_or_else(|| corrupt("a claim"))?;
        let attempt = match claim_rules::claim(Some(&row), &item.ask, row::timestamp(found, "now")?)
        {
            ClaimDecision::Answer(answer) => {
                answers[call] = Some(answer);
                continue;
            }
            ClaimDecision::Grant { attempt } => Some(attempt),
            ClaimDecision::Regrant(_) => None,
        };
        // One statement can change a row only once; a second call for the key goes into the next round.
        if taken.insert(&item.key) {
            regrants.push(Regrant { call, row, attempt });
        }
    }
    Ok(regrants)
}

/// The answer for a key without a row: granted, busy in an open transaction, or `None` if another
/// transaction committed a grant meanwhile.
fn vacant_answer(found: &SqlRow, ask: &ClaimRequest) -> SqlResult<Option<Claimed>> {
    if found.try_get::<Option<i64>>("fence")?.is_none() {
        return Ok(Some(busy(ask)));
    }
    if !found.try_get::<Option<bool>>("granted")?.unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(granted(ask, Fence(row::number(found, "fence")?), 1)))
}

async fn regrant<S: SqlSession>(
    session: &mut S,
    items: &[ClaimCall],
    regrants: &[Regrant],
    answers: &mut [Option<Claimed>],
) -> SqlResult<()> {
    let keys = KeyParams::many(regrants.iter().map(|r| &items[r.call].key));
    let asks = || regrants.iter().map(|r| &items[r.call].ask);
    let phases: Vec<i16> = regrants.iter().map(|r| r.row.phase.code()).collect();
    let fences: Vec<i64> = regrants.iter().map(|r| r.row.fence.0.cast_signed()).collect();
    let lease_ends: Vec<i64> = regrants.iter().map(|r| row::to_i64(r.row.lease_end.0)).collect();
    let is_new: Vec<bool> = regrants.iter().map(|r| r.attempt.is_some()).collect();
    let attempts: Vec<i32> = regrants
        .iter()
        .map(|r| i32::try_from(r.attempt.unwrap_or(r.row.attempt)).unwrap_or(i32::MAX))
        .collect();
    let tokens: Vec<&[u8]> = asks().map(|ask| ask.token.as_str().as_bytes()).collect();
    let fingerprints: Vec<Option<&[u8]>> = asks().map(fingerprint).collect();
    let leases: Vec<i64> = asks().map(|ask| row::duration(ask.lease)).collect();
    let retentions: Vec<i64> = regrants
        .iter()
        .zip(asks())
        .map(|(r, ask)| {
            row::duration(if r.attempt.is_some() { ask.retention } else { r.row.retention })
        })
        .collect();
    let params = keys.with(&[
        &phases,
        &fences,
        &lease_ends,
        &is_new,
        &attempts,
        &tokens,
        &fingerprints,
        &leases,
        &retentions,
    ]);
    let rows = session.rows(REGRANT, &params).await?;
    for row in &rows {
        let at = row::index(row)?;
        let regrant = regrants.get(at).ok_or_else(|| corrupt("an ordinal"))?;
        let fence = Fence(row::number(row, "fence")?);
        let attempt = u32::try_from(attempts[at]).unwrap_or(u32::MAX);
        answers[regrant.call] = Some(granted(&items[regrant.call].ask, fence, attempt));
    }
    Ok(())
}

fn granted(ask: &ClaimRequest, fence: Fence, attempt: u32) -> Claimed {
    Claimed::Granted { ticket: Ticket { token: ask.token.clone(), fence }, attempt }
}

fn busy(ask: &ClaimRequest) -> Claimed {
    Claimed::Busy { lease_left: OPEN_TRANSACTION.min(ask.lease) }
}

pub(super) fn fingerprint(ask: &ClaimRequest) -> Option<&[u8]> {
    ask.fingerprint.as_ref().map(|f| f.as_str().as_bytes())
}
