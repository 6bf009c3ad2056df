//! `Records` on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{
    Clock, Deleted, Expect, Key, Put, Record, Records, StoreError, Timestamp, Version,
};
use rusqlite::{Connection, OptionalExtension, params};

use crate::SqliteStore;
use crate::error::{column_error, store_error};
use crate::row::{execute, key_columns, next_sequence, to_i64};
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

pub(crate) fn get(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
) -> Result<Option<Record>, StoreError> {
    let now = clock.now();
    let value = |row: &rusqlite::Row<'_>| {
        Ok((Bytes::copy_from_slice(row.get_ref(2)?.as_blob()?), CurrentVersion::decode(row)?))
    };
    let found = connection
        .prepare_cached(
            "SELECT version, expires_at, value FROM hapax_records \
             WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        )
        .and_then(|mut query| query.query_row(key_columns(key), |row| Ok(value(row))).optional())
        .map_err(store_error)?
        .transpose()
        .map_err(column_error)?;
    Ok(found.filter(|(_, current)| current.is_alive(now)).map(|(value, current)| Record {
        value,
        version: current.version,
        expires_in: current.expires_at.map(|end| end.since(now)),
    }))
}

pub(crate) fn put(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    value: &Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> Result<Put, StoreError> {
    lock(connection)?;
    let now = clock.now();
    let current = CurrentVersion::read(connection, key, now)?;
    if !expect.holds(current.as_ref().map(|c| &c.version)) {
        return Ok(Put::Conflict);
    }
    let created = current.is_none();
    let kept = current.and_then(|c| c.expires_at);
    let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept);
    let version = next_sequence(connection)?;
    let [tenant, kind, scope, name] = key_columns(key);
    let expires_at = expires_at.map(|end| to_i64(end.0));
    execute(
        connection,
        "INSERT INTO hapax_records (tenant, kind, scope, name, version, expires_at, value) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
         ON CONFLICT DO UPDATE SET version = excluded.version, \
                expires_at = excluded.expires_at, value = excluded.value",
        params![tenant, kind, scope, name, to_i64(version), expires_at, &value[..]],
    )?;
    Ok(Put::Stored { version: Version::new(version.to_string()), created })
}

pub(crate) fn delete(
    connection: &Connection,
    clock: &dyn Clock,
    key: &Key,
    expect: &Expect,
) -> Result<Deleted, StoreError> {
    lock(connection)?;
    let Some(current) = CurrentVersion::read(connection, key, clock.now())? else {
        return Ok(Deleted::Missing);
    };
    if !expect.holds(Some(&current.version)) {
        return Ok(Deleted::Conflict);
    }
    execute(
        connection,
        "DELETE FROM hapax_records WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4",
        key_columns(key),
    )?;
    Ok(Deleted::Done)
}

/// The version and expiry of a record, without its bytes.
struct CurrentVersion {
    version: Version,
    expires_at: Option<Timestamp>,
}

impl CurrentVersion {
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
                query.query_row(key_columns(key), |row| Ok(Self::decode(row))).optional()
            })
            .map_err(store_error)?
            .transpose()
            .map_err(column_error)?;
        Ok(found.filter(|current| current.is_alive(now)))
    }

    fn decode(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let version: u64 = row.get(0)?;
        let expires_at: Option<u64> = row.get(1)?;
        Ok(Self {
            version: Version::new(version.to_string()),
            expires_at: expires_at.map(Timestamp),
        })
    }

    fn is_alive(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}
