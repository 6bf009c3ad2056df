//! One claim between `claim_rules::ClaimRow` and its table.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{ClaimPhase, ClaimRow};
use hapax_core::{Fence, Fingerprint, Key, StoreError, Timestamp, Token, millis};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::fault;

/// Times and durations too far away to count are the last one that the file can hold.
pub(crate) fn stored(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn read(connection: &Connection, key: &Key) -> Result<Option<ClaimRow>, StoreError> {
    let raw = connection
        .prepare_cached(
            "SELECT phase, fence, attempt, token, fingerprint, granted_at, lease_end, retention, \
                    expires_at, value \
             FROM hapax_claims WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut query| {
            let key = params![key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()];
            query.query_row(key, |row| Ok(decode(row))).optional()
        })
        .map_err(fault)?;
    raw.transpose()
}

pub(crate) fn decode(row: &rusqlite::Row<'_>) -> Result<ClaimRow, StoreError> {
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
    fields().map_err(damaged)
}

/// A column that holds what hapax never writes. The engine's text may quote the value.
pub(crate) fn damaged(error: rusqlite::Error) -> StoreError {
    if error.sqlite_error_code().is_some() {
        return fault(error);
    }
    StoreError::Corrupt { reason: "a column holds what hapax never writes".into() }
}

pub(crate) fn write(connection: &Connection, key: &Key, row: &ClaimRow) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO hapax_claims (tenant, kind, scope, name, phase, fence, attempt, token, \
                    fingerprint, granted_at, lease_end, retention, expires_at, value) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) \
             ON CONFLICT DO UPDATE SET phase = excluded.phase, fence = excluded.fence, \
                    attempt = excluded.attempt, token = excluded.token, \
                    fingerprint = excluded.fingerprint, granted_at = excluded.granted_at, \
                    lease_end = excluded.lease_end, retention = excluded.retention, \
                    expires_at = excluded.expires_at, value = excluded.value",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                key.tenant().as_str(),
                key.kind().as_str(),
                key.scope(),
                key.name(),
                row.phase.code(),
                stored(row.fence.0),
                row.attempt,
                row.token.as_str(),
                row.fingerprint.as_ref().map(Fingerprint::as_str),
                stored(row.granted_at.0),
                stored(row.lease_end.0),
                stored(millis(row.retention)),
                stored(row.expires_at.0),
                &row.value[..],
            ])
        })
        .map(drop)
        .map_err(fault)
}

pub(crate) fn delete(connection: &Connection, key: &Key) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "DELETE FROM hapax_claims \
             WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut statement| {
            let key = params![key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()];
            statement.execute(key)
        })
        .map(drop)
        .map_err(fault)
}

/// The next number of the one sequence that fences and versions come from. The caller holds the
/// write lock. (Two statements cost a third of one with RETURNING, which builds a table in memory.)
pub(crate) fn next(connection: &Connection) -> Result<u64, StoreError> {
    let taken = || -> rusqlite::Result<u64> {
        connection
            .prepare_cached("UPDATE hapax_meta SET value = value + 1 WHERE name = 'sequence'")?
            .execute([])?;
        connection
            .prepare_cached("SELECT value FROM hapax_meta WHERE name = 'sequence'")?
            .query_row([], |row| row.get(0))
    };
    taken().map_err(fault)
}

/// Writes something that nobody needs. It has to differ from what is there: the engine spares
/// itself a write that changes nothing.
pub(crate) fn probe(connection: &Connection) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "INSERT INTO hapax_meta (name, value) VALUES ('probe', 0) \
             ON CONFLICT DO UPDATE SET value = 1 - value",
        )
        .and_then(|mut statement| statement.execute([]))
        .map(drop)
        .map_err(fault)
}
