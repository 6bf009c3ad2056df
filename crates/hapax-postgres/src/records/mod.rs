//! `Records` on PostgreSQL: concurrent reads and concurrent puts are batched into one statement each. A write is
//! repeated while another transaction holds the key's lock.

pub(crate) mod batch;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreResult, Version, with_timeout};

use crate::PostgresStore;
use crate::connect::session::{SqlRow, SqlSession};
use crate::error::SqlResult;
use crate::row::{self, KeyParams};
use crate::tx::lock::LockRetry;
use batch::{PutAnswer, PutCall};

/// `NO_VERSION` expects that there is no record, NULL expects nothing.
const PUT: &str = "SELECT is_locked, version, created \
     FROM hapax_put_record($1, $2, $3, $4, $5, $6, $7, $8, false)";

/// A version that the sequence never returns.
const NO_VERSION: i64 = -1;

#[async_trait]
impl Records for PostgresStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        self.gets.submit(key.clone()).await
    }

    /// A put on a key that another transaction is writing is retried, without blocking other puts or
    /// a connection.
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let Some(call) = PutCall::new(key, value, expect, ttl) else { return Ok(Put::Conflict) };
        let mut retry = LockRetry::new(self.pool.timeout);
        with_timeout(self.pool.timeout, async {
            loop {
                match self.puts.submit(call.clone()).await? {
                    Some(put) => return Ok(put),
                    None => retry.wait().await?,
                }
            }
        })
        .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (mut session, retry) = (self.pool.session(), LockRetry::new(self.pool.timeout));
        self.pool.run(delete(&mut session, retry, key, expect)).await
    }
}

pub(crate) async fn get<S: SqlSession>(session: &mut S, key: &Key) -> SqlResult<Option<Record>> {
    let sql = include_str!("../sql/get.sql");
    let rows = session.rows(sql, &KeyParams::one(key).columns()).await?;
    rows.first().map(read_record).transpose()
}

fn read_record(found: &SqlRow) -> SqlResult<Record> {
    let now = row::timestamp(found, "now")?;
    let expires = found.try_get::<Option<i64>>("expires_at")?.is_some();
    let expires_at = expires.then(|| row::timestamp(found, "expires_at")).transpose()?;
    Ok(Record {
        value: row::bytes(found, "value")?,
        version: Version::new(row::number(found, "version")?.to_string()),
        expires_in: expires_at.map(|end| end.since(now)),
    })
}

pub(crate) async fn put<S: SqlSession>(
    session: &mut S,
    mut retry: LockRetry,
    key: &Key,
    value: Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> SqlResult<Put> {
    let Some(call) = PutCall::new(key, value, expect, ttl) else { return Ok(Put::Conflict) };
    loop {
        match put_once(session, &call).await? {
            Some(put) => return Ok(put),
            None => retry.wait().await?,
        }
    }
}

impl PutCall {
    /// `None` for a version that no record can have.
    fn new(key: &Key, value: Bytes, expect: &Expect, ttl: Option<Duration>) -> Option<Self> {
        let expected = expected_version(expect);
        let is_impossible = expected == Some(NO_VERSION) && !matches!(expect, Expect::Absent);
        let (key, ttl) = (key.clone(), ttl.map(row::duration));
        (!is_impossible).then_some(Self { key, value, ttl, expected })
    }
}

async fn put_once<S: SqlSession>(session: &mut S, call: &PutCall) -> SqlResult<PutAnswer> {
    let (keys, value) = (KeyParams::one(&call.key), &call.value[..]);
    let rows = session.rows(PUT, &keys.with(&[&value, &call.ttl, &call.expected])).await?;
    let answer = row::only(&rows)?;
    if answer.try_get::<bool>("is_locked")? { Ok(None) } else { stored(answer).map(Some) }
}

/// The answer of a put that was not locked out.
fn stored(answer: &SqlRow) -> SqlResult<Put> {
    Ok(match answer.try_get::<Option<i64>>("version")? {
        None => Put::Conflict,
        Some(version) => Put::Stored {
            version: Version::new(version.to_string()),
            created: answer.try_get("created")?,
        },
    })
}

pub(crate) async fn delete<S: SqlSession>(
    session: &mut S,
    mut retry: LockRetry,
    key: &Key,
    expect: &Expect,
) -> SqlResult<Deleted> {
    let (keys, expected) = (KeyParams::one(key), expected_version(expect));
    loop {
        let rows =
            session.rows(include_str!("../sql/delete.sql"), &keys.with(&[&expected])).await?;
        let answer = row::only(&rows)?;
        if answer.try_get::<bool>("gone")? {
            return Ok(Deleted::Done);
        }
        match answer.try_get::<Option<i64>>("found")? {
            None => return Ok(Deleted::Missing),
            Some(found) if expected.is_some_and(|expected| expected != found) => {
                return Ok(Deleted::Conflict);
            }
            Some(_) if !answer.try_get::<bool>("mine")? => retry.wait().await?,
            // The record was written between the read and the delete: read again.
            Some(_) => {}
        }
    }
}

/// The version that a record must have; `None` for any.
fn expected_version(expect: &Expect) -> Option<i64> {
    match expect {
        Expect::Any => None,
        Expect::Absent => Some(NO_VERSION),
        Expect::Version(version) => Some(version_number(version)),
    }
}

/// The stored number of a version. Any other spelling of that number is another version.
fn version_number(version: &Version) -> i64 {
    let number = version.as_str().parse().unwrap_or(NO_VERSION);
    if number.to_string() == version.as_str() { number } else { NO_VERSION }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_number_has_one_spelling() {
        assert_eq!(version_number(&Version::new("7")), 7);
        for other in ["", "+7", "07", " 7", "7.0", "99999999999999999999", "x"] {
            assert_eq!(version_number(&Version::new(other)), NO_VERSION, "{other}");
        }
    }
}
