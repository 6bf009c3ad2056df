//! `Claims` on SQLite. `claim_rules` decides; this file reads and writes the rows.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimDecision, ClaimPhase, ClaimRow};
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Fingerprint, Key, Step,
    StoreResult, Timestamp, Token, Watch, millis, with_timeout,
};
use rusqlite::{Row, params};

use crate::SqliteStore;
use crate::session::{Session, UnsignedColumns, key_columns, to_i64};
use crate::tx::lock::{lock, try_lock};
use crate::writer::WriteInfo;

/// The `lease_left` of a claim in another open transaction, whose lease is not visible yet.
pub(crate) const OPEN_TRANSACTION: Duration = Duration::from_millis(50);

/// The columns that [`decode_row`] reads.
pub(crate) const READ_CLAIM: &str = "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
            expires_at, value \
     FROM hapax_claims WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

pub(crate) const WRITE_CLAIM: &str = "INSERT INTO hapax_claims (tenant, kind, scope, name, phase, fence, attempt, token, \
            fingerprint, granted_at, lease_end, retention, expires_at, value) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
     ON CONFLICT DO UPDATE SET phase = excluded.phase, fence = excluded.fence, \
            attempt = excluded.attempt, token = excluded.token, \
            fingerprint = excluded.fingerprint, granted_at = excluded.granted_at, \
            lease_end = excluded.lease_end, retention = excluded.retention, \
            expires_at = excluded.expires_at, value = excluded.value";

pub(crate) const DELETE_CLAIM: &str =
    "DELETE FROM hapax_claims WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

#[async_trait]
impl Claims for SqliteStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        // Both steps below share one timeout.
        with_timeout(self.0.config.timeout, self.read_then_claim(key, ask)).await
    }

    async fn step(&self, key: &Key, token: &Token, kind: ClaimStep) -> StoreResult<Step> {
        let wakes = vec![key.digest()];
        let write = match &kind {
            ClaimStep::Extend(_) => WriteInfo::frees_room(),
            ClaimStep::Settle(value) => {
                WriteInfo { bytes: value.len(), wakes, ..WriteInfo::default() }
            }
            ClaimStep::GiveBack(_) => WriteInfo { wakes, ..WriteInfo::frees_room() },
        };
        let (key, token) = (key.clone(), token.clone());
        self.write(write, move |session| step(session, &key, &token, &kind)).await
    }

    async fn look(&self, key: &Key) -> StoreResult<Option<ClaimView>> {
        let key = key.clone();
        self.read(move |session| look(session, &key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.watch_key(key)
    }
}

impl SqliteStore {
    /// Lets a reader answer settled, busy and mismatching claims, which works even while another
    /// process holds the write lock; everything else is decided again by the writer.
    async fn read_then_claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let (key_, ask_) = (key.clone(), ask.clone());
        let known = self.read(move |session| answer_without_writing(session, &key_, &ask_)).await?;
        if let Some(answer) = known {
            return Ok(answer);
        }
        let (key, ask) = (key.clone(), ask.clone());
        self.write(WriteInfo::default(), move |session| claim(session, &key, &ask)).await
    }
}

/// Never waits for another transaction: where one holds the write lock, or wrote since this
/// transaction began to read, the answer is [`Claimed::Busy`].
pub(crate) fn claim(session: Session<'_>, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
    if !try_lock(session.connection)? {
        return Ok(Claimed::Busy { lease_left: OPEN_TRANSACTION });
    }
    let now = session.now()?;
    let row = match claim_rules::claim(read_row(session, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => return Ok(answer),
        ClaimDecision::Grant { attempt } => {
            claim_rules::granted(ask, Fence(session.next_sequence()?), attempt, now)
        }
        ClaimDecision::Regrant(row) => row,
    };
    write_row(session, key, &row)?;
    Ok(row.grant())
}

fn answer_without_writing(
    session: Session<'_>,
    key: &Key,
    ask: &ClaimRequest,
) -> StoreResult<Option<Claimed>> {
    let now = session.now()?;
    match claim_rules::claim(read_row(session, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => Ok(Some(answer)),
        ClaimDecision::Grant { .. } | ClaimDecision::Regrant(_) => Ok(None),
    }
}

pub(crate) fn step(
    session: Session<'_>,
    key: &Key,
    token: &Token,
    step: &ClaimStep,
) -> StoreResult<Step> {
    lock(session.connection)?;
    let row = read_row(session, key)?;
    match claim_rules::step(row.as_ref(), token, step, session.now()?) {
        ClaimChange::Nothing(step) => Ok(step),
        ClaimChange::Write(row) => {
            write_row(session, key, &row)?;
            Ok(Step::Done(row.fence))
        }
        ClaimChange::Delete(fence) => {
            session.execute(DELETE_CLAIM, key_columns(key))?;
            Ok(Step::Done(fence))
        }
    }
}

pub(crate) fn look(session: Session<'_>, key: &Key) -> StoreResult<Option<ClaimView>> {
    let now = session.now()?;
    Ok(claim_rules::look(read_row(session, key)?.as_ref(), now))
}

fn read_row(session: Session<'_>, key: &Key) -> StoreResult<Option<ClaimRow>> {
    session.first(READ_CLAIM, key_columns(key), decode_row)
}

pub(crate) fn decode_row(row: &Row<'_>) -> rusqlite::Result<ClaimRow> {
    Ok(ClaimRow {
        phase: ClaimPhase::from_code(row.get(0)?)
            .ok_or(rusqlite::Error::IntegralValueOutOfRange(0, row.get(0)?))?,
        fence: Fence(row.unsigned(1)?),
        attempt: row.get(2)?,
        token: Token::presented(row.get_ref(3)?.as_str()?),
        fingerprint: row.get_ref(4)?.as_str_or_null()?.and_then(Fingerprint::new),
        granted_at: Timestamp(row.unsigned(5)?),
        lease_end: Timestamp(row.unsigned(6)?),
        retention: Duration::from_millis(row.unsigned(7)?),
        expires_at: Timestamp(row.unsigned(8)?),
        value: Bytes::copy_from_slice(row.get_ref(9)?.as_blob()?),
    })
}

fn write_row(session: Session<'_>, key: &Key, row: &ClaimRow) -> StoreResult<()> {
    let [tenant, kind, scope, name] = key_columns(key);
    let written = session.execute(
        WRITE_CLAIM,
        params![
            tenant,
            kind,
            scope,
            name,
            row.phase.code(),
            to_i64(row.fence.0),
            row.attempt,
            row.token.as_str(),
            row.fingerprint.as_ref().map(Fingerprint::as_str),
            to_i64(row.granted_at.0),
            to_i64(row.lease_end.0),
            to_i64(millis(row.retention)),
            to_i64(row.expires_at.0),
            &row.value[..],
        ],
    );
    written.map(drop)
}
