//! Claims and steps through the SQL functions, for transactions of the caller: one round trip each, decided in the
//! database, as for callers in other languages.

use std::time::Duration;

use hapax_core::inbox::MessageStatus;
use hapax_core::{ClaimRequest, ClaimStep, Claimed, Fence, Key, OnUnknown, Step, Ticket, Token};

use super::claim::fingerprint;
use super::step::{StepAnswer, code, lease, value};
use crate::connect::session::{SqlRow, SqlSession};
use crate::error::{SqlResult, corrupt};
use crate::row::{self, KeyParams};

const CLAIM: &str = "SELECT answer, fence, attempt, time_left, value \
     FROM hapax_claim_key($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false, false)";

/// Stores a message of an inbox as settled at once, because its effect commits with it.
const RECEIVE: &str = "SELECT answer \
     FROM hapax_claim_key($1, $2, $3, $4, $5, $6, NULL, 0, $7, true, false, true)";

const STEP: &str =
    "SELECT answer, fence FROM hapax_step_key($1, $2, $3, $4, $5, $6, $7, $8, $9, false)";

pub(crate) async fn claim<S: SqlSession>(
    session: &mut S,
    key: &Key,
    ask: &ClaimRequest,
) -> SqlResult<Claimed> {
    let (keys, token, fingerprint) =
        (KeyParams::one(key), ask.token.as_str().as_bytes(), fingerprint(ask));
    let (lease, retention) = (row::duration(ask.lease), row::duration(ask.retention));
    let take_over = ask.on_unknown == OnUnknown::TakeOver;
    let params = keys.with(&[&token, &fingerprint, &lease, &retention, &take_over]);
    let rows = session.rows(CLAIM, &params).await?;
    let row = row::only(&rows)?;
    Ok(match row.try_get("answer")? {
        "granted" => {
            let attempt: i32 = row.try_get("attempt")?;
            let attempt = u32::try_from(attempt).map_err(|_| corrupt("an attempt"))?;
            let fence = Fence(row::number(row, "fence")?);
            Claimed::Granted { ticket: Ticket { token: ask.token.clone(), fence }, attempt }
        }
        "busy" => Claimed::Busy { lease_left: time_left(row)? },
        "settled" => {
            Claimed::Settled { value: row::bytes(row, "value")?, expires_in: time_left(row)? }
        }
        "mismatch" => Claimed::Mismatch,
        "unknown" => Claimed::Unknown { since: time_left(row)? },
        _ => return Err(corrupt("an answer").into()),
    })
}

pub(crate) async fn step<S: SqlSession>(
    session: &mut S,
    key: &Key,
    token: &Token,
    step: &ClaimStep,
) -> SqlResult<StepAnswer> {
    let (keys, token) = (KeyParams::one(key), token.as_str().as_bytes());
    let (code, lease, value) = (code(step), lease(step), value(step));
    let rows = session.rows(STEP, &keys.with(&[&token, &code, &lease, &value])).await?;
    let row = row::only(&rows)?;
    Ok(match row.try_get("answer")? {
        "done" => Some(Step::Done(Fence(row::number(row, "fence")?))),
        "lost" => Some(Step::Lost),
        "locked" => None,
        _ => return Err(corrupt("an answer").into()),
    })
}

pub(crate) async fn receive<S: SqlSession>(
    session: &mut S,
    key: &Key,
    retention: Duration,
) -> SqlResult<MessageStatus> {
    let (keys, retention, token) = (KeyParams::one(key), row::duration(retention), Token::random());
    let token = token.as_str().as_bytes();
    let rows = session.rows(RECEIVE, &keys.with(&[&token, &retention])).await?;
    Ok(match row::only(&rows)?.try_get("answer")? {
        "granted" => MessageStatus::First,
        "settled" => MessageStatus::Duplicate,
        "busy" => MessageStatus::Busy,
        _ => return Err(corrupt("a message").into()),
    })
}

fn time_left(row: &SqlRow) -> SqlResult<Duration> {
    Ok(Duration::from_millis(row::number(row, "time_left")?))
}
