//! `Records` on SQLite.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, Records, StoreResult, Timestamp, Version};
use rusqlite::{Row, params};

use crate::SqliteStore;
use crate::session::{Session, UnsignedColumns, key_columns, to_i64};
use crate::tx::lock::lock;
use crate::writer::WriteInfo;

pub(crate) const READ_RECORD: &str = "SELECT version, expires_at, value FROM hapax_records \
     WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

pub(crate) const READ_VERSION: &str = "SELECT version, expires_at FROM hapax_records \
     WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

pub(crate) const WRITE_RECORD: &str = "INSERT INTO hapax_records (tenant, kind, scope, name, version, expires_at, value) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) \
     ON CONFLICT DO UPDATE SET version = excluded.version, \
            expires_at = excluded.expires_at, value = excluded.value";

pub(crate) const DELETE_RECORD: &str =
    "DELETE FROM hapax_records WHERE tenant = ?1 AND kind = ?2 AND scope = ?3 AND name = ?4";

#[async_trait]
impl Records for SqliteStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let key = key.clone();
        self.read(move |session| get(session, &key)).await
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let (key, expect) = (key.clone(), expect.clone());
        let write = WriteInfo { bytes: value.len(), ..WriteInfo::default() };
        self.write(write, move |session| put(session, &key, &value, &expect, ttl)).await
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let (key, expect) = (key.clone(), expect.clone());
        self.write(WriteInfo::frees_room(), move |session| delete(session, &key, &expect)).await
    }
}

pub(crate) fn get(session: Session<'_>, key: &Key) -> StoreResult<Option<Record>> {
    let now = session.now()?;
    let found = session.first(READ_RECORD, key_columns(key), |row| {
        let value = Bytes::copy_from_slice(row.get_ref(2)?.as_blob()?);
        Ok((value, CurrentVersion::decode(row)?))
    })?;
    Ok(found.filter(|(_, current)| current.is_alive(now)).map(|(value, current)| Record {
        value,
        version: current.version,
        expires_in: current.expires_at.map(|end| end.since(now)),
    }))
}

pub(crate) fn put(
    session: Session<'_>,
    key: &Key,
    value: &Bytes,
    expect: &Expect,
    ttl: Option<Duration>,
) -> StoreResult<Put> {
    lock(session.connection)?;
    let now = session.now()?;
    let current = CurrentVersion::read(session, key, now)?;
    if !expect.holds(current.as_ref().map(|c| &c.version)) {
        return Ok(Put::Conflict);
    }
    let created = current.is_none();
    let kept = current.and_then(|c| c.expires_at);
    let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept).map(|end| to_i64(end.0));
    let version = session.next_sequence()?;
    let [tenant, kind, scope, name] = key_columns(key);
    session.execute(
        WRITE_RECORD,
        params![tenant, kind, scope, name, to_i64(version), expires_at, &value[..]],
    )?;
    Ok(Put::Stored { version: Version::new(version.to_string()), created })
}

pub(crate) fn delete(session: Session<'_>, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
    lock(session.connection)?;
    let Some(current) = CurrentVersion::read(session, key, session.now()?)? else {
        return Ok(Deleted::Missing);
    };
    if !expect.holds(Some(&current.version)) {
        return Ok(Deleted::Conflict);
    }
    session.execute(DELETE_RECORD, key_columns(key))?;
    Ok(Deleted::Done)
}

/// The version and expiry of a record, without its bytes.
struct CurrentVersion {
    version: Version,
    expires_at: Option<Timestamp>,
}

impl CurrentVersion {
    fn read(session: Session<'_>, key: &Key, now: Timestamp) -> StoreResult<Option<Self>> {
        let found = session.first(READ_VERSION, key_columns(key), Self::decode)?;
        Ok(found.filter(|current| current.is_alive(now)))
    }

    fn decode(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            version: Version::new(row.unsigned(0)?.to_string()),
            expires_at: row.unsigned_or_null(1)?.map(Timestamp),
        })
    }

    fn is_alive(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end)
    }
}
