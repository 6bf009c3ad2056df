//! `Records` on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Clock, Deleted, Expect, Key, Put, Record, Records, StoreError, Timestamp, Version,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::SqliteStore;
use crate::error::fault;
use crate::row::{damaged, next, stored};
use crate::tx::lock::lock;

#[async_trait]
impl Records for SqliteStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let (clock, key) = (self.clock(), key.clone());
        self.read(move |c| get(c, &*clock, &key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let (clock, key, expect) = (self.clock(), key.clone(), expect.clone());
        self.write(value.len(), Vec::new(), move |c| put(c, &*clock, &key, &value, &expect, ttl))
            .await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let (clock, key, expect) = (self.clock(), key.clone(), expect.clone());
        self.write(0, Vec::new(), move |c| delete(c, &*clock, &key, &expect)).await
    }
}

/// Reads a record, as your transaction sees it.
pub fn get(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
) -> Result<Option<Record>, StoreError> {
    let now = clock.now();
    let value = |row: &rusqlite::Row<'_>| {
        Ok((Bytes::copy_from_slice(row.get_ref(2)?.as_blob()?), Current::decode(row)?))
    };
    let found = connection
        .prepare_cached(
            "SELECT version, expires_at, value FROM hapax_records \
             WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut query| query.query_row(parts(key), |row| Ok(value(row))).optional())
        .map_err(fault)?
        .transpose()
        .map_err(damaged)?;
    Ok(found.filter(|(_, current)| current.is_there(now)).map(|(value, current)| Record {
        value,
        version: current.version,
        expires_in: current.expires_at.map(|end| end.since(now)),
    }))
}

/// Writes a record, where the expectation holds.
pub fn put(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    value: &Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> Result<Put, StoreError> {
    lock(connection)?;
    let now = clock.now();
    let current = Current::read(connection, key, now)?;
    if !expect.holds(current.as_ref().map(|c| &c.version)) {
        return Ok(Put::Conflict);
    }
    let created = current.is_none();
    let kept = current.and_then(|c| c.expires_at);
    let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept);
    let version = next(connection)?;
    connection
        .prepare_cached(
            "INSERT INTO hapax_records (tenant, kind, scope, name, version, expires_at, value) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
             ON CONFLICT DO UPDATE SET version = excluded.version, \
                    expires_at = excluded.expires_at, value = excluded.value",
        )
        .and_then(|mut statement| {
            statement.execute(params![
                key.tenant().as_str(),
                key.kind().as_str(),
                key.scope(),
                key.name(),
                stored(version),
                expires_at.map(|end| stored(end.0)),
                &value[..],
            ])
        })
        .map_err(fault)?;
    Ok(Put::Stored { version: Version::new(version.to_string()), created })
}

/// Deletes a record, where the expectation holds.
pub fn delete(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    expect: &Expect,
) -> Result<Deleted, StoreError> {
    lock(connection)?;
    let Some(current) = Current::read(connection, key, clock.now())? else {
        return Ok(Deleted::Missing);
    };
    if !expect.holds(Some(&current.version)) {
        return Ok(Deleted::Conflict);
    }
    connection
        .prepare_cached(
            "DELETE FROM hapax_records \
             WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut statement| statement.execute(parts(key)))
        .map_err(fault)?;
    Ok(Deleted::Done)
}

/// What a put or delete compares: everything but the bytes.
struct Current {
    version: Version,
    expires_at: Option<Timestamp>,
}

impl Current {
    fn read(
        connection: &Connection,
        key: &Key,
        now: Timestamp,
    ) -> Result<Option<Self>, StoreError> {
        let found = connection
            .prepare_cached(
                "SELECT version, expires_at FROM hapax_records \
                 WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
            )
            .and_then(|mut query| {
                query.query_row(parts(key), |row| Ok(Self::decode(row))).optional()
            })
            .map_err(fault)?
            .transpose()
            .map_err(damaged)?;
        Ok(found.filter(|current| current.is_there(now)))
    }

    fn decode(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let version: u64 = row.get(0)?;
        let expires_at: Option<u64> = row.get(1)?;
        Ok(Self {
            version: Version::new(version.to_string()),
            expires_at: expires_at.map(Timestamp),
        })
    }

    fn is_there(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}

fn parts(key: &Key) -> [&str; 4] {
    [key.tenant().as_str(), key.kind().as_str(), key.scope(), key.name()]
}
