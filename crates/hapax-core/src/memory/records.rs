use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{MemoryStore, Tables};
use crate::{Deleted, Expect, Key, Put, Record, Records, StoreResult, Timestamp, Version};

#[derive(Clone, Debug)]
pub(super) struct StoredRecord {
    value: Bytes,
    version: Version,
    expires_at: Option<Timestamp>,
}

impl StoredRecord {
    pub(super) fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

impl Tables {
    fn record(&self, key: &Key, now: Timestamp) -> Option<&StoredRecord> {
        self.records.get(key).filter(|record| !record.is_expired(now))
    }
}

#[async_trait]
impl Records for MemoryStore {
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>> {
        let now = self.clock.now();
        Ok(self.tables().record(key, now).map(|stored| Record {
            value: stored.value.clone(),
            version: stored.version.clone(),
            expires_in: stored.expires_at.map(|end| end.since(now)),
        }))
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let current = tables.record(key, now);
        if !expect.holds(current.map(|r| &r.version)) {
            return Ok(Put::Conflict);
        }
        let created = current.is_none();
        let kept = current.and_then(|r| r.expires_at);
        let expires_at = ttl.map(|ttl| now.plus(ttl)).or(kept);
        let version = Version::new(self.sequence.next().to_string());
        let stored = StoredRecord { value, version: version.clone(), expires_at };
        tables.records.insert(key.clone(), stored);
        Ok(Put::Stored { version, created })
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted> {
        let mut tables = self.tables();
        let Some(current) = tables.record(key, self.clock.now()) else {
            return Ok(Deleted::Missing);
        };
        if !expect.holds(Some(&current.version)) {
            return Ok(Deleted::Conflict);
        }
        tables.records.remove(key);
        Ok(Deleted::Done)
    }
}
