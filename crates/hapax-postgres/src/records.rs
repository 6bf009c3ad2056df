//! `Records` on PostgreSQL, one statement per call, repeated while another transaction holds the
//! key's lock.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreResult, Version};

use crate::PostgresStore;
use crate::connect::session::SqlSession;
use crate::error::SqlResult;
use crate::row::{self, KeyParams};
use crate::tx::lock::LockRetry;

/// `NO_VERSION` expects that there is no record, NULL expects nothing.
const PUT: &str = "SELECT is_locked, version, created \
     FROM hapax_put_record($1, $2, $3, $4, $5, $6, $7, $8, false)";

/// A version that the sequence never returns.
const NO_VERSION: i64 = -1;

#[async_trait]
impl Records for PostgresStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        self.pool.run(get(&mut self.pool.session(), key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let (mut session, retry) = (self.pool.session(), LockRetry::new(self.pool.timeout));
        self.pool.run(put(&mut session, retry, key, &value, expect, ttl)).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (mut session, retry) = (self.pool.session(), LockRetry::new(self.pool.timeout));
        self.pool.run(delete(&mut session, retry, key, expect)).await
    }
}

pub(crate) async fn get<S: SqlSession>(session: &mut S, key: &Key) -> SqlResult<Option<Record>> {
    let sql = include_str!("sql/get.sql");
    let rows = session.rows(sql, &KeyParams::one(key).columns()).await?;
    let Some(found) = rows.first() else { return Ok(None) };
    let now = row::timestamp(found, "now")?;
    let expires = found.try_get::<Option<i64>>("expires_at")?.is_some();
    let expires_at = expires.then(|| row::timestamp(found, "expires_at")).transpose()?;
    Ok(Some(Record {
        value: row::bytes(found, "value")?,
        version: Version::new(row::number(found, "version")?.to_string()),
        expires_in: expires_at.map(|end| end.since(now)),
    }))
}

pub(crate) async fn put<S: SqlSession>(
    session: &mut S,
    mut retry: LockRetry,
    key: &Key,
    value: &Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> SqlResult<Put> {
    if matches!(expect, Expect::Version(version) if version_number(version) == NO_VERSION) {
        return Ok(Put::Conflict);
    }
    let (keys, value, ttl) = (KeyParams::one(key), &value[..], ttl.map(row::duration));
    let expected = expected_version(expect);
    loop {
        let rows = session.rows(PUT, &keys.with(&[&value, &ttl, &expected])).await?;
        let answer = row::only(&rows)?;
        if answer.try_get::<bool>("is_locked")? {
            retry.wait().await?;
            continue;
        }
        return Ok(match answer.try_get::<Option<i64>>("version")? {
            None => Put::Conflict,
            Some(version) => Put::Stored {
                version: Version::new(version.to_string()),
                created: answer.try_get("created")?,
            },
        });
    }
}

pub(crate) async fn delete<S: SqlSession>(
    session: &mut S,
    mut retry: LockRetry,
    key: &Key,
    expect: &Expect,
) -> SqlResult<Deleted> {
    let (keys, expected) = (KeyParams::one(key), expected_version(expect));
    loop {
        let rows = session.rows(include_str!("sql/delete.sql"), &keys.with(&[&expected])).await?;
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
