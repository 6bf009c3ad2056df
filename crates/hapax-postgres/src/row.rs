//! Conversions between columns and the types of hapax-core.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{ClaimPhase, ClaimRow};
use hapax_core::{Fence, Fingerprint, Key, Timestamp, Token, millis};

use crate::connect::session::SqlRow;
use crate::error::{StatementError, corrupt};

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

pub(crate) fn digest(key: &Key) -> i64 {
    key.digest().cast_signed()
}

pub(crate) fn timestamp(row: &SqlRow, column: &str) -> Result<Timestamp, StatementError> {
    Ok(Timestamp(number(row, column)?))
}

pub(crate) fn number(row: &SqlRow, column: &str) -> Result<u64, StatementError> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt("a negative number").into())
}

pub(crate) fn bytes(row: &SqlRow, column: &str) -> Result<Bytes, StatementError> {
    Ok(Bytes::copy_from_slice(row.try_get(column)?))
}

/// The stored claim, if this row holds one.
pub(crate) fn claim(row: &SqlRow) -> Result<Option<ClaimRow>, StatementError> {
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

fn text(stored: &[u8]) -> Result<&str, StatementError> {
    Ok(std::str::from_utf8(stored).map_err(|_| corrupt("a token or fingerprint"))?)
}

/// Many keys as the array parameters of `unnest`.
#[derive(Default)]
pub(crate) struct KeyColumns<'a> {
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) scopes: Vec<&'a str>,
    pub(crate) names: Vec<&'a str>,
    pub(crate) digests: Vec<i64>,
}

impl<'a> KeyColumns<'a> {
    pub(crate) fn push(&mut self, key: &'a Key) {
        self.tenants.push(key.tenant().as_str());
        self.kinds.push(key.kind().as_str());
        self.scopes.push(key.scope());
        self.names.push(key.name());
        self.digests.push(digest(key));
    }
}

/// The index of the operation that this row answers.
pub(crate) fn index(row: &SqlRow) -> Result<usize, StatementError> {
    let at: i64 = row.try_get("at")?;
    Ok(usize::try_from(at - 1).map_err(|_| corrupt("an ordinal"))?)
}
