//! `Claims` on SQLite. `claim_rules` decides; this file reads and writes the rows.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::claim_rules::{self, ClaimChange, ClaimDecision, ClaimPhase, ClaimRow};
use hapax_core::{
    ClaimRequest, ClaimView, Claimed, Claims, Clock, Fence, Fingerprint, GiveBack, Key, Step,
    StoreError, Timestamp, Token, Watch, millis, with_timeout,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::SqliteStore;
use crate::error::{column_error, store_error};
use crate::row::{execute, key_columns, next_sequence, to_i64};
use crate::tx::lock::{lock, try_lock};

/// The `lease_left` of a claim in another open transaction, whose lease is not visible yet.
const OPEN_TRANSACTION: Duration = Duration::from_millis(50);

#[async_trait]
impl Claims for SqliteStore {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        // Both steps below share one timeout.
        with_timeout(self.0.config.timeout, self.read_then_claim(key, ask)).await
    }

    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, Vec::new(), move |c| extend(c, &*clock, &key, &token, lease)).await
    }

    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        let (size, wakes) = (value.len(), vec![key.digest()]);
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(size, wakes, move |c| settle(c, &*clock, &key, &token, &value)).await
    }

    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        let wakes = vec![key.digest()];
        let (clock, key, token) = (self.clock(), key.clone(), token.clone());
        self.write(0, wakes, move |c| give_back(c, &*clock, &key, &token, how)).await
    }

    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        let (clock, key) = (self.clock(), key.clone());
        self.read(move |c| look(c, &*clock, &key)).await
    }

    fn watch(&self, key: &Key) -> Watch {
        self.watch_key(key)
    }
}

impl SqliteStore {
    /// Lets a reader answer settled, busy and mismatching claims, which works even while another
    /// process holds the write lock; everything else is decided again by the writer.
    async fn read_then_claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        let (clock, key_, ask_) = (self.clock(), key.clone(), ask.clone());
        let known = self.read(move |c| answer_without_writing(c, &*clock, &key_, &ask_)).await?;
        if let Some(answer) = known {
            return Ok(answer);
        }
        let (clock, key, ask) = (self.clock(), key.clone(), ask.clone());
        self.write(0, Vec::new(), move |c| claim(c, &*clock, &key, &ask)).await
    }
}

/// Never waits for another transaction: where one holds the write lock, or wrote since this
/// transaction began to read, the answer is [`Claimed::Busy`].
pub(crate) fn claim(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
) -> Result<Claimed, StoreError> {
    if !try_lock(connection)? {
        return Ok(Claimed::Busy { lease_left: OPEN_TRANSACTION });
    }
    let now = clock.now();
    let row = match claim_rules::claim(read_row(connection, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => return Ok(answer),
        ClaimDecision::Grant { attempt } => {
            claim_rules::granted(ask, Fence(next_sequence(connection)?), attempt, now)
        }
        ClaimDecision::Regrant(row) => row,
    };
    write_row(connection, key, &row)?;
    Ok(row.grant())
}

fn answer_without_writing(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    ask: &ClaimRequest,
) -> Result<Option<Claimed>, StoreError> {
    // The clock is read before the row: a lease that is extended between the two would otherwise
    // seem to have run out.
    let now = clock.now();
    match claim_rules::claim(read_row(connection, key)?.as_ref(), ask, now) {
        ClaimDecision::Answer(answer) => Ok(Some(answer)),
        ClaimDecision::Grant { .. } | ClaimDecision::Regrant(_) => Ok(None),
    }
}

pub(crate) fn extend(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    lease: Duration,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::extend(row, token, lease, now))
}

pub(crate) fn settle(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    value: &Bytes,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::settle(row, token, value, now))
}

pub(crate) fn give_back(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    token: &Token,
    how: GiveBack,
) -> Result<Step, StoreError> {
    step(connection, clock, key, |row, now| claim_rules::give_back(row, token, how, now))
}

pub(crate) fn look(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
) -> Result<Option<ClaimView>, StoreError> {
    let now = clock.now();
    Ok(claim_rules::look(read_row(connection, key)?.as_ref(), now))
}

fn step(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    decide: impl FnOnce(Option<&ClaimRow>, Timestamp) -> ClaimChange,
) -> Result<Step, StoreError> {
    lock(connection)?;
    match decide(read_row(connection, key)?.as_ref(), clock.now()) {
        ClaimChange::Nothing(step) => Ok(step),
        ClaimChange::Write(row) => {
            write_row(connection, key, &row)?;
            Ok(Step::Done(row.fence))
        }
        ClaimChange::Delete(fence) => {
            let sql = "DELETE FROM hapax_claims \
                       WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";
            execute(connection, sql, key_columns(key))?;
            Ok(Step::Done(fence))
        }
    }
}

fn read_row(connection: &Connection, key: &Key) -> Result<Option<ClaimRow>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
                    expires_at, value \
             FROM hapax_claims WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut query| {
            query.query_row(key_columns(key), |row| Ok(decode_row(row))).optional()
        })
        .map_err(store_error)?;
    found.transpose()
}

pub(crate) fn decode_row(row: &rusqlite::Row<'_>) -> Result<ClaimRow, StoreError> {
    let fields = || -> rusqlite::Result<_> {
        Ok(ClaimRow {
            phase: ClaimPhase::from_code(row.get(0)?)
                .ok_or(rusqlite::Error::IntegralValueOutOfRange(0, row.get(0)?))?,
            fence: Fence(row.get(1)?),
            attempt: row.get(2)?,
            token: Token::presented(row.get_ref(3)?.as_str()?),
            fingerprint: row.get_ref(4)?.as_str_or_null()?.and_then(Fingerprint::new),
            granted_at: Timestamp(row.get(5)?),
            lease_end: Timestamp(row.get(6)?),
            retention: Duration::from_millis(row.get(7)?),
            expires_at: Timestamp(row.get(8)?),
            value: Bytes::copy_from_slice(row.get_ref(9)?.as_blob()?),
        })
    };
    fields().map_err(column_error)
}

fn write_row(connection: &Connection, key: &Key, row: &ClaimRow) -> Result<(), StoreError> {
    let [tenant, kind, scope, name] = key_columns(key);
    execute(
        connection,
        "INSERT INTO hapax_claims (tenant, kind, scope, name, phase, fence, attempt, token, \
                fingerprint, granted_at, lease_end, retention, expires_at, value) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
         ON CONFLICT DO UPDATE SET phase = excluded.phase, fence = excluded.fence, \
                attempt = excluded.attempt, token = excluded.token, \
                fingerprint = excluded.fingerprint, granted_at = excluded.granted_at, \
                lease_end = excluded.lease_end, retention = excluded.retention, \
                expires_at = excluded.expires_at, value = excluded.value",
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
    )
    .map(drop)
}
