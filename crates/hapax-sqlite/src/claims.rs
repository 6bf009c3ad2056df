//! `Claims` on SQLite. `claim_rules` decides; this file reads and writes the rows.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimDecision, ClaimPhase, ClaimRow};
use hapax_core::{
    ClaimRequest, ClaimStep, ClaimView, Claimed, Claims, Fence, Fingerprint, Key, Step, StoreError,
    StoreResult, Timestamp, Token, Watch, millis, with_timeout,
};
use rusqlite::types::{Null, ToSqlOutput};
use rusqlite::{Row, params_from_iter};
use tokio::sync::mpsc;

use crate::SqliteStore;
use crate::queued_call::{Caller, QueuedCall, TypedCall, catch_panic, run_on_thread};
use crate::session::{Session, UnsignedColumns, key_columns, to_i64};
use crate::tx::lock::{lock, try_lock};
use crate::writer::{WriteInfo, WriterMessage};

/// The `lease_left` of a claim in another open transaction, whose lease is not visible yet.
pub(crate) const OPEN_TRANSACTION: Duration = Duration::from_millis(50);

/// The columns that [`decode_row`] reads, and the row's place.
pub(crate) const READ_CLAIM: &str = "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
            expires_at, value, rowid \
     FROM hapax_claims WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

/// Changes nothing where the key has a row.
pub(crate) const INSERT_CLAIM: &str = "INSERT INTO hapax_claims (tenant, kind, scope, name, phase, fence, attempt, token, \
            fingerprint, granted_at, lease_end, retention, expires_at, value) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
     ON CONFLICT DO NOTHING";

pub(crate) const UPDATE_CLAIM: &str = "UPDATE hapax_claims SET phase = ?1, fence = ?2, attempt = ?3, token = ?4, fingerprint = ?5, \
            granted_at = ?6, lease_end = ?7, retention = ?8, expires_at = ?9, value = ?10 \
     WHERE rowid = ?11";

pub(crate) const DELETE_CLAIM: &str = "DELETE FROM hapax_claims WHERE rowid = ?1";

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
    /// Lets a reader answer settled, busy and mismatching claims, which works even while another process holds the write
    /// lock. It hands everything else to the writer, which decides again.
    async fn read_then_claim(&self, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
        let call = |caller| -> Box<dyn QueuedCall> {
            let (key, ask, writer) = (key.clone(), ask.clone(), self.0.writer.clone());
            Box::new(ClaimCall { key, ask, writer, known: None, caller })
        };
        if let Some(answer) = run_on_thread(self.read_queue(), call).await? {
            return Ok(answer);
        }
        let (key, ask) = (key.clone(), ask.clone());
        self.write(WriteInfo::default(), move |session| claim(session, &key, &ask)).await
    }
}

/// A claim on its way to a reader, and from there to the writer without a detour through its caller, who would be woken
/// for nothing.
struct ClaimCall {
    key: Key,
    ask: ClaimRequest,
    writer: mpsc::Sender<WriterMessage>,
    /// What the reader found; `Ok(None)` where the writer has to decide.
    known: Option<StoreResult<Option<Claimed>>>,
    /// Gets `None` if the writer's queue is full: then the caller waits for room in it.
    caller: Caller<Option<Claimed>>,
}

impl QueuedCall for ClaimCall {
    fn is_abandoned(&self) -> bool {
        self.caller.is_closed()
    }

    fn run(&mut self, session: Session<'_>) {
        self.known = Some(catch_panic(|| answer_without_writing(session, &self.key, &self.ask)));
    }

    fn error(&self) -> Option<&StoreError> {
        self.known.as_ref()?.as_ref().err()
    }

    fn send_answer(self: Box<Self>) {
        let Self { key, ask, writer, known, caller } = *self;
        if let (Some(Ok(None)), Ok(place)) = (&known, writer.try_reserve()) {
            let work = move |session: Session<'_>| claim(session, &key, &ask).map(Some);
            let call = Box::new(TypedCall::new(work, caller));
            place.send(WriterMessage::Run { call, write: WriteInfo::default() });
        } else if let Some(known) = known {
            let _ = caller.send(known);
        }
    }

    fn fail(self: Box<Self>, error: StoreError) {
        let _ = self.caller.send(Err(error));
    }
}

/// Never waits for another transaction: where one holds the write lock, or wrote since this
/// transaction began to read, the answer is [`Claimed::Busy`].
pub(crate) fn claim(session: Session<'_>, key: &Key, ask: &ClaimRequest) -> StoreResult<Claimed> {
    if !try_lock(session.connection)? {
        return Ok(Claimed::Busy { lease_left: OPEN_TRANSACTION });
    }
    let now = session.now()?;
    // A claim that gets as far as the writer is nearly always vacant, so the writer inserts before it reads. In a
    // caller's own transaction even an unused fence would be a write.
    let mut unused_fence = None;
    if session.sequence.is_some() {
        let row = claim_rules::granted(ask, Fence(session.next_sequence()?), 1, now);
        if insert_row(session, key, &row)? {
            return Ok(row.grant());
        }
        unused_fence = Some(row.fence);
    }
    let found = read_row(session, key)?;
    let row = match claim_rules::claim(found.as_ref().map(|found| &found.row), ask, now) {
        ClaimDecision::Answer(answer) => return Ok(answer),
        ClaimDecision::Grant { attempt } => {
            let fence = match unused_fence {
                Some(fence) => fence,
                None => Fence(session.next_sequence()?),
            };
            claim_rules::granted(ask, fence, attempt, now)
        }
        ClaimDecision::Regrant(row) => row,
    };
    match found {
        Some(found) => update_row(session, found.rowid, &row)?,
        None => drop(insert_row(session, key, &row)?),
    }
    Ok(row.grant())
}

fn answer_without_writing(
    session: Session<'_>,
    key: &Key,
    ask: &ClaimRequest,
) -> StoreResult<Option<Claimed>> {
    let now = session.now()?;
    let found = read_row(session, key)?.map(|found| found.row);
    match claim_rules::claim(found.as_ref(), ask, now) {
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
    let now = session.now()?;
    let Some(found) = read_row(session, key)? else { return Ok(Step::Lost) };
    match claim_rules::step(Some(&found.row), token, step, now) {
        ClaimChange::Nothing(step) => Ok(step),
        ClaimChange::Write(row) => {
            update_row(session, found.rowid, &row)?;
            Ok(Step::Done(row.fence))
        }
        ClaimChange::Delete(fence) => {
            session.execute(DELETE_CLAIM, [found.rowid])?;
            Ok(Step::Done(fence))
        }
    }
}

pub(crate) fn look(session: Session<'_>, key: &Key) -> StoreResult<Option<ClaimView>> {
    let now = session.now()?;
    let found = read_row(session, key)?.map(|found| found.row);
    Ok(claim_rules::look(found.as_ref(), now))
}

/// A row of the table, and where it is.
struct StoredClaim {
    rowid: i64,
    row: ClaimRow,
}

fn read_row(session: Session<'_>, key: &Key) -> StoreResult<Option<StoredClaim>> {
    session.first(READ_CLAIM, key_columns(key), |row| {
        Ok(StoredClaim { rowid: row.get(10)?, row: decode_row(row)? })
    })
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

/// `false` where the key has a row, which is left as it is.
fn insert_row(session: Session<'_>, key: &Key, row: &ClaimRow) -> StoreResult<bool> {
    let key = key_columns(key).map(ToSqlOutput::from);
    let columns = key.into_iter().chain(row_columns(row));
    Ok(session.execute(INSERT_CLAIM, params_from_iter(columns))? > 0)
}

fn update_row(session: Session<'_>, rowid: i64, row: &ClaimRow) -> StoreResult<()> {
    let columns = row_columns(row).into_iter().chain([rowid.into()]);
    session.execute(UPDATE_CLAIM, params_from_iter(columns)).map(drop)
}

/// The columns of a claim after its key.
fn row_columns(row: &ClaimRow) -> [ToSqlOutput<'_>; 10] {
    let number = |number: u64| ToSqlOutput::from(to_i64(number));
    [
        row.phase.code().into(),
        number(row.fence.0),
        row.attempt.into(),
        row.token.as_str().into(),
        row.fingerprint.as_ref().map_or(Null.into(), |text| text.as_str().into()),
        number(row.granted_at.0),
        number(row.lease_end.0),
        number(millis(row.retention)),
        number(row.expires_at.0),
        row.value[..].as_ref().into(),
    ]
}
