//! `Records` on PostgreSQL, one statement per call. `None` from [`put`] and [`delete`] means that
//! another transaction holds the key's lock.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreError, Version};
use tokio_postgres::types::Type;

use crate::connect::session::{Sql, SqlSession};
use crate::error::{StatementError, corrupt};
use crate::tx::lock::LockRetry;
use crate::{PostgresStore, row};

/// A version that the sequence never returns.
const NO_VERSION: i64 = -1;

const GET: Sql = Sql {
    text: include_str!("sql/get.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT],
};

const PUT: Sql = Sql {
    text: include_str!("sql/put.sql"),
    types: &[
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::BYTEA,
        Type::INT8,
        Type::BOOL,
    ],
};

const REPLACE: Sql = Sql {
    text: include_str!("sql/replace.sql"),
    types: &[
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::TEXT,
        Type::INT8,
        Type::BYTEA,
        Type::INT8,
        Type::INT8,
    ],
};

const DELETE: Sql = Sql {
    text: include_str!("sql/delete.sql"),
    types: &[Type::TEXT, Type::TEXT, Type::TEXT, Type::TEXT, Type::INT8, Type::INT8],
};

#[async_trait]
impl Records for PostgresStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        self.pool.run(async { get(&mut self.pool.connection().await?, key).await }).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let mut retry = LockRetry::new(self.pool.timeout);
        self.pool
            .run(async {
                loop {
                    let mut connection = self.pool.connection().await?;
                    let put = put(&mut connection, key, &value, expect, ttl).await?;
                    drop(connection);
                    match put {
                        Some(put) => return Ok(put),
                        None => retry.wait().await?,
                    }
                }
            })
            .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let mut retry = LockRetry::new(self.pool.timeout);
        self.pool
            .run(async {
                loop {
                    let mut connection = self.pool.connection().await?;
                    let deleted = delete(&mut connection, key, expect).await?;
                    drop(connection);
                    match deleted {
                        Some(deleted) => return Ok(deleted),
                        None => retry.wait().await?,
                    }
                }
            })
            .await
    }
}

pub(crate) async fn get<S: SqlSession>(
    session: &mut S,
    key: &Key,
) -> Result<Option<Record>, StatementError> {
    let (tenant, kind) = (key.tenant().as_str(), key.kind().as_str());
    let rows = session.rows(&GET, &[&tenant, &kind, &key.scope(), &key.name()]).await?;
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
    key: &Key,
    value: &Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> Result<Option<Put>, StatementError> {
    let (tenant, kind, digest) = (key.tenant().as_str(), key.kind().as_str(), row::digest(key));
    let (scope, name, value) = (key.scope(), key.name(), &value[..]);
    let ttl = ttl.map(row::duration);
    let rows = match expect {
        Expect::Version(version) => {
            let version = version_number(version);
            session
                .rows(&REPLACE, &[&tenant, &kind, &scope, &name, &digest, &value, &ttl, &version])
                .await?
        }
        Expect::Any | Expect::Absent => {
            let any = *expect == Expect::Any;
            session
                .rows(&PUT, &[&tenant, &kind, &scope, &name, &digest, &value, &ttl, &any])
                .await?
        }
    };
    let answer = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
    if !answer.try_get::<bool>("mine")? {
        return Ok(None);
    }
    Ok(Some(match answer.try_get::<Option<i64>>("version")? {
        None => Put::Conflict,
        Some(version) => Put::Stored {
            version: Version::new(version.to_string()),
            created: answer.try_get("created")?,
        },
    }))
}

pub(crate) async fn delete<S: SqlSession>(
    session: &mut S,
    key: &Key,
    expect: &Expect,
) -> Result<Option<Deleted>, StatementError> {
    let (tenant, kind, digest) = (key.tenant().as_str(), key.kind().as_str(), row::digest(key));
    let (scope, name) = (key.scope(), key.name());
    let expected = match expect {
        Expect::Any => None,
        Expect::Absent => Some(NO_VERSION),
        Expect::Version(version) => Some(version_number(version)),
    };
    loop {
        let rows =
            session.rows(&DELETE, &[&tenant, &kind, &scope, &name, &digest, &expected]).await?;
        let answer = rows.first().ok_or_else(|| corrupt("an empty answer"))?;
        if answer.try_get::<bool>("gone")? {
            return Ok(Some(Deleted::Done));
        }
        match answer.try_get::<Option<i64>>("found")? {
            None => return Ok(Some(Deleted::Missing)),
            Some(found) if expected.is_some_and(|expected| expected != found) => {
                return Ok(Some(Deleted::Conflict));
            }
            Some(_) if !answer.try_get::<bool>("mine")? => return Ok(None),
            // The record was written between the read and the delete: read again.
            Some(_) => {}
        }
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
