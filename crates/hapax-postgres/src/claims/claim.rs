//! Claims, many in one statement.

use std::collections::HashSet;
use std::time::Duration;

use hapax_core::claim_rules::{self, ClaimDecision, ClaimRow};
use hapax_core::{ClaimRequest, Claimed, Fence, Key, Ticket, Timestamp};
use tokio_postgres::types::Type;

use crate::batch::Work;
use crate::connect::session::{self, Session, Sql};
use crate::error::{Failure, corrupt};
use crate::row::{self, Keys};

/// How often a lost race is run again. Each loss means that somebody else got on.
const ROUNDS: usize = 8;

/// What is told about a claim in somebody's open transaction, whose lease nobody else can see.
const OPEN: Duration = Duration::from_millis(100);

const CLAIM: Sql = Sql {
    text: include_str!("../sql/claim.sql"),
    types: &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
};

const RENEW: Sql = Sql {
    text: include_str!("../sql/renew.sql"),
    types: &[
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::BOOL_ARRAY,
        Type::INT4_ARRAY,
        Type::BYTEA_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
    ],
};

/// One asker.
pub(crate) struct Asked {
    pub(crate) key: Key,
    pub(crate) ask: ClaimRequest,
}

pub(crate) struct Claiming;

impl Work for Claiming {
    type Item = Asked;
    type Answer = Claimed;

    fn lane(item: &Asked) -> u64 {
        item.key.digest()
    }

    async fn run<S: Session>(
        session: &mut S,
        items: &[Asked],
        answers: &mut [Option<Claimed>],
    ) -> Result<(), Failure> {
        for _ in 0..ROUNDS {
            let open: Vec<usize> = (0..items.len()).filter(|i| answers[*i].is_none()).collect();
            if open.is_empty() {
                return Ok(());
            }
            let renewals = ask(session, items, &open, answers).await?;
            if !renewals.is_empty() {
                renew(session, items, &renewals, answers).await?;
            }
        }
        for (item, answer) in items.iter().zip(answers) {
            answer.get_or_insert_with(|| held(&item.ask));
        }
        Ok(())
    }
}

/// A row to be granted although it is there.
struct Renewal {
    asker: usize,
    row: ClaimRow,
    /// A new grant as this attempt; else the asker's own one with the lease anew.
    attempt: Option<u32>,
}

/// Grants what is vacant, answers what can be answered by looking, and returns what has to be
/// written over. Who lost a race stays without an answer.
async fn ask<S: Session>(
    session: &mut S,
    items: &[Asked],
    open: &[usize],
    answers: &mut [Option<Claimed>],
) -> Result<Vec<Renewal>, Failure> {
    let asked = || open.iter().map(|i| &items[*i]);
    let mut keys = Keys::default();
    asked().for_each(|item| keys.push(&item.key));
    let tokens: Vec<&[u8]> = asked().map(|item| item.ask.token.as_str().as_bytes()).collect();
    let fingerprints: Vec<Option<&[u8]>> = asked().map(|item| fingerprint(&item.ask)).collect();
    let leases: Vec<i64> = asked().map(|item| row::duration(item.ask.lease)).collect();
    let retentions: Vec<i64> = asked().map(|item| row::duration(item.ask.retention)).collect();
    let rows = session
        .rows(
            &CLAIM,
            &[
                &keys.tenants,
                &keys.kinds,
                &keys.scopes,
                &keys.names,
                &keys.digests,
                &tokens,
                &fingerprints,
                &leases,
                &retentions,
            ],
        )
        .await?;
    let mut renewals = Vec::new();
    let mut taken = HashSet::new();
    for found in &rows {
        let asker = *open.get(row::index(found)?).ok_or_else(|| corrupt("an ordinal"))?;
        let item = &items[asker];
        if !found.try_get::<bool>("known")? {
            answers[asker] = vacant(found, &item.ask)?;
            continue;
        }
        let row = row::claim(found)?.ok_or_else(|| corrupt("a claim"))?;
        let attempt = match claim_rules::claim(Some(&row), &item.ask, row::timestamp(found, "now")?)
        {
            ClaimDecision::Answer(answer) => {
                answers[asker] = Some(answer);
                continue;
            }
            ClaimDecision::Grant { attempt } => Some(attempt),
            ClaimDecision::Regrant(_) => None,
        };
        // One statement changes a row once; the second asker looks again in the next round.
        if taken.insert(&item.key) {
            renewals.push(Renewal { asker, row, attempt });
        }
    }
    Ok(renewals)
}

/// A key that nobody had when the statement began: granted, held by an open transaction, or lost
/// to somebody who committed meanwhile.
fn vacant(found: &session::Row, ask: &ClaimRequest) -> Result<Option<Claimed>, Failure> {
    if found.try_get::<Option<i64>>("fence")?.is_none() {
        return Ok(Some(held(ask)));
    }
    if !found.try_get::<Option<bool>>("granted")?.unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(granted(ask, Fence(row::number(found, "fence")?), 1)))
}

async fn renew<S: Session>(
    session: &mut S,
    items: &[Asked],
    renewals: &[Renewal],
    answers: &mut [Option<Claimed>],
) -> Result<(), Failure> {
    let mut keys = Keys::default();
    renewals.iter().for_each(|r| keys.push(&items[r.asker].key));
    let asks = || renewals.iter().map(|r| &items[r.asker].ask);
    let phases: Vec<i16> = renewals.iter().map(|r| r.row.phase.code()).collect();
    let fences: Vec<i64> = renewals.iter().map(|r| r.row.fence.0.cast_signed()).collect();
    let lease_ends: Vec<i64> = renewals.iter().map(|r| signed(r.row.lease_end)).collect();
    let fresh: Vec<bool> = renewals.iter().map(|r| r.attempt.is_some()).collect();
    let attempts: Vec<i32> = renewals
        .iter()
        .map(|r| i32::try_from(r.attempt.unwrap_or(r.row.attempt)).unwrap_or(i32::MAX))
        .collect();
    let tokens: Vec<&[u8]> = asks().map(|ask| ask.token.as_str().as_bytes()).collect();
    let fingerprints: Vec<Option<&[u8]>> = asks().map(fingerprint).collect();
    let leases: Vec<i64> = asks().map(|ask| row::duration(ask.lease)).collect();
    let retentions: Vec<i64> = renewals
        .iter()
        .zip(asks())
        .map(|(r, ask)| {
            row::duration(if r.attempt.is_some() { ask.retention } else { r.row.retention })
        })
        .collect();
    let rows = session
        .rows(
            &RENEW,
            &[
                &keys.tenants,
                &keys.kinds,
                &keys.scopes,
                &keys.names,
                &keys.digests,
                &phases,
                &fences,
                &lease_ends,
                &fresh,
                &attempts,
                &tokens,
                &fingerprints,
                &leases,
                &retentions,
            ],
        )
        .await?;
    for row in &rows {
        let at = row::index(row)?;
        let renewal = renewals.get(at).ok_or_else(|| corrupt("an ordinal"))?;
        let fence = Fence(row::number(row, "fence")?);
        let attempt = u32::try_from(attempts[at]).unwrap_or(u32::MAX);
        answers[renewal.asker] = Some(granted(&items[renewal.asker].ask, fence, attempt));
    }
    Ok(())
}

fn granted(ask: &ClaimRequest, fence: Fence, attempt: u32) -> Claimed {
    Claimed::Granted { ticket: Ticket { token: ask.token.clone(), fence }, attempt }
}

fn held(ask: &ClaimRequest) -> Claimed {
    Claimed::Busy { lease_left: OPEN.min(ask.lease) }
}

fn fingerprint(ask: &ClaimRequest) -> Option<&[u8]> {
    ask.fingerprint.as_ref().map(|f| f.as_str().as_bytes())
}

fn signed(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}
