//! Conversions between columns and the types of hapax-core.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{ClaimPhase, ClaimRow};
use hapax_core::{Fence, Fingerprint, Key, Timestamp, Token, millis};

use crate::connect::session::{SqlParam, SqlRow};
use crate::error::{SqlResult, corrupt};

/// Caps durations at 73 million years, so that sums of now, lease and retention fit into a bigint.
const MAX_MILLIS: u64 = 1 << 61;

pub(crate) fn duration(time: Duration) -> i64 {
    millis(time).min(MAX_MILLIS) as i64
}

/// As [`duration`], capped at a thousand years, which an interval can hold.
pub(crate) fn interval_millis(time: Duration) -> i64 {
    duration(time).min(1000 * 365 * 86_400_000)
}

/// Saturates at the largest bigint.
pub(crate) fn to_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn timestamp(row: &SqlRow, column: &str) -> SqlResult<Timestamp> {
    Ok(Timestamp(number(row, column)?))
}

pub(crate) fn number(row: &SqlRow, column: &str) -> SqlResult<u64> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt("a negative number").into())
}

pub(crate) fn bytes(row: &SqlRow, column: &str) -> SqlResult<Bytes> {
    Ok(Bytes::copy_from_slice(row.try_get(column)?))
}

/// The stored claim, if this row holds one.
pub(crate) fn claim(row: &SqlRow) -> SqlResult<Option<ClaimRow>> {
    let Some(phase) = row.try_get::<Option<i16>>("phase")? else {
        return Ok(None);
    };
    let fingerprint = match row.try_get::<Option<&[u8]>>("fingerprint")? {
        None => None,
        Some(stored) => {
            Some(Fingerprint::new(text(stored)?).ok_or_else(|| corrupt("a fingerprint"))?)
        }
    };
    let attempt: i32 = row.try_get("attempt")?;
    Ok(Some(ClaimRow {
        phase: ClaimPhase::from_code(phase).ok_or_else(|| corrupt("a phase"))?,
        fence: Fence(number(row, "fence")?),
        attempt: u32::try_from(attempt).map_err(|_| corrupt("an attempt"))?,
        token: Token::presented(text(row.try_get("token")?)?),
        fingerprint,
        granted_at: timestamp(row, "granted_at")?,
        lease_end: timestamp(row, "lease_end")?,
        retention: Duration::from_millis(number(row, "retention")?),
        expires_at: timestamp(row, "expires_at")?,
        value: bytes(row, "value")?,
    }))
}

fn text(stored: &[u8]) -> SqlResult<&str> {
    Ok(std::str::from_utf8(stored).map_err(|_| corrupt("a token or fingerprint"))?)
}

/// The first five parameters of a statement about one key, or arrays of them about many keys: the
/// columns `tenant, kind, scope, name`, and the digest.
pub(crate) struct KeyParams<T, D> {
    columns: [T; 4],
    digest: D,
}

impl<'a> KeyParams<&'a str, i64> {
    pub(crate) fn one(key: &'a Key) -> Self {
        let columns = [key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()];
        Self { columns, digest: key.digest().cast_signed() }
    }
}

impl<'a> KeyParams<Vec<&'a str>, Vec<i64>> {
    pub(crate) fn many(keys: impl Iterator<Item = &'a Key>) -> Self {
        let mut all = Self { columns: Default::default(), digest: Vec::new() };
        for key in keys.map(KeyParams::one) {
            all.columns.iter_mut().zip(key.columns).for_each(|(all, column)| all.push(column));
            all.digest.push(key.digest);
        }
        all
    }
}

impl<T: SqlParam, D: SqlParam> KeyParams<T, D> {
    /// The columns without the digest.
    pub(crate) fn columns(&self) -> [&dyn SqlParam; 4] {
        self.columns.each_ref().map(|column| column as &dyn SqlParam)
    }

    /// Columns, digest, and the other parameters of the statement.
    pub(crate) fn with<'p>(&'p self, others: &[&'p dyn SqlParam]) -> Vec<&'p dyn SqlParam> {
        [&self.columns()[..], &[&self.digest], others].concat()
    }
}

/// The row of a statement that always returns one.
pub(crate) fn only(rows: &[SqlRow]) -> SqlResult<&SqlRow> {
    Ok(rows.first().ok_or_else(|| corrupt("an empty answer"))?)
}

/// The index of the operation that this row answers.
pub(crate) fn index(row: &SqlRow) -> SqlResult<usize> {
    let at: i64 = row.try_get("at")?;
    Ok(usize::try_from(at - 1).map_err(|_| corrupt("an ordinal"))?)
}
