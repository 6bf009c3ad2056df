//! Between the columns of a table and the types of the core.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::claim_rules::{ClaimPhase, ClaimRow};
use hapax_core::{Fence, Fingerprint, Key, Timestamp, Token, millis};

use crate::connect::session::Row;
use crate::error::{Failure, corrupt};

/// Beyond 73 million years time stops, so that sums of now, lease and retention stay in a bigint.
const FAR: u64 = 1 << 61;

pub(crate) fn duration(time: Duration) -> i64 {
    millis(time).min(FAR) as i64
}

/// Within what an interval can hold: a thousand years.
pub(crate) fn brief(time: Duration) -> i64 {
    duration(time).min(1000 * 365 * 86_400_000)
}

/// As a bigint; what is too large for one is the largest.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn digest(key: &Key) -> i64 {
    key.digest().cast_signed()
}

pub(crate) fn timestamp(row: &Row, column: &str) -> Result<Timestamp, Failure> {
    Ok(Timestamp(number(row, column)?))
}

pub(crate) fn number(row: &Row, column: &str) -> Result<u64, Failure> {
    let number: i64 = row.try_get(column)?;
    u64::try_from(number).map_err(|_| corrupt("a negative number").into())
}

pub(crate) fn bytes(row: &Row, column: &str) -> Result<Bytes, Failure> {
    Ok(Bytes::copy_from_slice(row.try_get(column)?))
}

/// The stored claim, where this row of an answer holds one.
pub(crate) fn claim(row: &Row) -> Result<Option<ClaimRow>, Failure> {
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

fn text(stored: &[u8]) -> Result<&str, Failure> {
    Ok(std::str::from_utf8(stored).map_err(|_| corrupt("a token or fingerprint"))?)
}

/// Many keys as the columns that `unnest` takes.
#[derive(Default)]
pub(crate) struct Keys<'a> {
    pub(crate) tenants: Vec<&'a str>,
    pub(crate) kinds: Vec<&'a str>,
    pub(crate) scopes: Vec<&'a str>,
    pub(crate) names: Vec<&'a str>,
    pub(crate) digests: Vec<i64>,
}

impl<'a> Keys<'a> {
    pub(crate) fn push(&mut self, key: &'a Key) {
        self.tenants.push(key.tenant().as_str());
        self.kinds.push(key.kind().as_str());
        self.scopes.push(key.scope());
        self.names.push(key.name());
        self.digests.push(digest(key));
    }
}

/// The index of an asker, from the ordinal number that its row came back with.
pub(crate) fn index(row: &Row) -> Result<usize, Failure> {
    let at: i64 = row.try_get("at")?;
    Ok(usize::try_from(at - 1).map_err(|_| corrupt("an ordinal"))?)
}
