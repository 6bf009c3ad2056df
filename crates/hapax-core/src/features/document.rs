//! JSON documents with a version: read, compare and put, merge patch.
//!
//! ```
//! use std::sync::Arc;
//! use hapax_core::{memory::MemoryStore, document::{Documents, MatchCondition, DocumentError}};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Entry { item: String, amount: u32 }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), DocumentError> {
//! let documents = Documents::new(Arc::new(MemoryStore::default()));
//! let name = "user:U1:last_transaction";
//! let lunch = Entry { item: "lunch".into(), amount: 100 };
//! documents.put(name, &lunch, &MatchCondition::Any, None).await?;
//!
//! // Reads, changes and writes back, and starts over where somebody else was faster.
//! let changed = documents.update(name, None, |entry: &mut Entry| entry.amount = 120).await?;
//! assert_eq!(changed.value.amount, 120);
//! assert!(matches!(documents.update("nobody", None, |_: &mut Entry| ()).await, Err(DocumentError::Missing)));
//! # Ok(()) }
//! ```

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::{counter, histogram};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    Deleted, Expect, InvalidKey, Key, Put, Record, Records, StoreError, Tenant, Version,
    metric_names,
};

/// How often a change without a version starts over before it gives up.
const TRIES: usize = 16;

/// Why a record was not read or written. Missing, unreachable and corrupt are three answers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// There is none.
    #[error("there is no such record")]
    Missing,
    /// It is not the version that was expected; nothing was changed.
    #[error("the record is not the expected version")]
    Conflict,
    /// Others kept changing it; nothing was changed.
    #[error("others changed the record {TRIES} times in a row; try again")]
    Contended,
    /// It would be larger than [`Documents::limit`] allows; nothing was changed.
    #[error("a record takes at most {limit} bytes")]
    TooLarge {
        /// How large it may be.
        limit: usize,
    },
    /// What is stored is not JSON, or not of the expected shape.
    #[error("the stored record cannot be read")]
    Corrupt(#[source] Option<serde_json::Error>),
    /// The value cannot be written as JSON.
    #[error("the value cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The name cannot be one.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store gave no answer.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for DocumentError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Corrupt { .. } => Self::Corrupt(None),
            error => Self::Store(error),
        }
    }
}

/// A document as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document<T> {
    /// What it says.
    pub value: T,
    /// Which version it is.
    pub version: Version,
    /// How long it is still there; `None` for ever.
    pub expires_in: Option<Duration>,
}

/// What a change expects, as HTTP's `If-Match` and `If-None-Match` say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchCondition {
    /// Anything, or nothing.
    Any,
    /// Nothing (`If-None-Match: *`).
    Absent,
    /// Something (`If-Match: *`).
    Present,
    /// One of these versions (`If-Match: "1", "2"`).
    OneOf(Vec<Version>),
}

impl From<Version> for MatchCondition {
    fn from(version: Version) -> Self {
        Self::OneOf(vec![version])
    }
}

/// What became of a [`Documents::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDocument {
    /// The new version.
    pub version: Version,
    /// Whether there was none before.
    pub created: bool,
}

/// Documents of one tenant.
#[derive(Clone)]
pub struct Documents {
    store: Arc<dyn Records>,
    tenant: Tenant,
    limit: usize,
}

impl Documents {
    /// Documents of the default tenant on this store.
    pub fn new(store: Arc<dyn Records>) -> Self {
        Self { store, tenant: Tenant::default(), limit: 1024 * 1024 }
    }

    /// Documents of another tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: Tenant) -> Self {
        self.tenant = tenant;
        self
    }

    /// How large a document may be, in bytes of JSON; 1 MiB by default. It holds for what a patch or
    /// an update makes of it too.
    #[must_use]
    pub fn limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Reads a document; `None` where there is none.
    pub async fn get<T: DeserializeOwned>(
        &self,
        name: &str,
    ) -> Result<Option<Document<T>>, DocumentError> {
        let Some(record) = self.read(&Key::record(&self.tenant, name)?).await? else {
            return Ok(None);
        };
        parse(record).map(Some)
    }

    /// Reads a document as the bytes that are stored.
    pub async fn get_raw(&self, name: &str) -> Result<Option<Record>, DocumentError> {
        let record = self.read(&Key::record(&self.tenant, name)?).await?;
        if let Some(record) = &record {
            serde_json::from_slice::<serde::de::IgnoredAny>(&record.value)
                .map_err(|error| DocumentError::Corrupt(Some(error)))?;
        }
        Ok(record)
    }

    /// Writes a document where the expectation holds; without a TTL it keeps the one it has.
    pub async fn put<T: Serialize + ?Sized>(
        &self,
        name: &str,
        value: &T,
        expect: &MatchCondition,
        ttl: Option<Duration>,
    ) -> Result<StoredDocument, DocumentError> {
        let json = serde_json::to_vec(value).map_err(DocumentError::Unwritable)?;
        self.put_raw(name, json.into(), expect, ttl).await
    }

    /// Writes bytes that are known to be JSON.
    pub async fn put_raw(
        &self,
        name: &str,
        json: Bytes,
        expect: &MatchCondition,
        ttl: Option<Duration>,
    ) -> Result<StoredDocument, DocumentError> {
        let key = Key::record(&self.tenant, name)?;
        for _ in 0..TRIES {
            let (expected, last_word) = self.expected(&key, expect).await?;
            match self.write(&key, json.clone(), &expected, ttl).await? {
                Put::Stored { version, created } => return Ok(StoredDocument { version, created }),
                Put::Conflict if last_word => return Err(DocumentError::Conflict),
                Put::Conflict => {}
            }
        }
        Err(DocumentError::Contended)
    }

    /// Applies an RFC 7386 merge patch in one compare-and-put.
    pub async fn patch(
        &self,
        name: &str,
        patch: &Value,
        expect: &MatchCondition,
        ttl: Option<Duration>,
    ) -> Result<Document<Value>, DocumentError> {
        self.change(name, expect, ttl, |value| merge(value, patch)).await
    }

    /// Reads, changes and writes back, starting over where somebody else was faster. `change` may
    /// run several times.
    pub async fn update<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        ttl: Option<Duration>,
        change: impl FnMut(&mut T),
    ) -> Result<Document<T>, DocumentError> {
        self.change(name, &MatchCondition::Any, ttl, change).await
    }

    async fn change<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        expect: &MatchCondition,
        ttl: Option<Duration>,
        mut change: impl FnMut(&mut T),
    ) -> Result<Document<T>, DocumentError> {
        let key = Key::record(&self.tenant, name)?;
        for _ in 0..TRIES {
            let Some(record) = self.read(&key).await? else {
                return Err(match expect {
                    MatchCondition::Any | MatchCondition::Absent => DocumentError::Missing,
                    MatchCondition::Present | MatchCondition::OneOf(_) => DocumentError::Conflict,
                });
            };
            if !expect.allows(&record.version) {
                return Err(DocumentError::Conflict);
            }
            let mut document = parse::<T>(record)?;
            change(&mut document.value);
            let json = serde_json::to_vec(&document.value).map_err(DocumentError::Unwritable)?;
            let expected = Expect::Version(document.version);
            if let Put::Stored { version, .. } =
                self.write(&key, json.into(), &expected, ttl).await?
            {
                let expires_in = ttl.or(document.expires_in);
                return Ok(Document { value: document.value, version, expires_in });
            }
        }
        Err(DocumentError::Contended)
    }

    /// Deletes a document where the expectation holds.
    pub async fn delete(&self, name: &str, expect: &MatchCondition) -> Result<(), DocumentError> {
        let key = Key::record(&self.tenant, name)?;
        for _ in 0..TRIES {
            let (expected, last_word) = self.expected(&key, expect).await?;
            let asked = Instant::now();
            let answer = self.store.delete(&key, &expected).await;
            histogram!(metric_names::KV_SET).record(asked.elapsed());
            counted("delete", &answer, |deleted| match deleted {
                Deleted::Done => "deleted",
                Deleted::Missing => "miss",
                Deleted::Conflict => "conflict",
            });
            match answer? {
                Deleted::Done => return Ok(()),
                Deleted::Missing if *expect == MatchCondition::Any => {
                    return Err(DocumentError::Missing);
                }
                _ if last_word => return Err(DocumentError::Conflict),
                _ => {}
            }
        }
        Err(DocumentError::Contended)
    }

    /// What to ask of the primitive, and whether its refusal is the last word: where several
    /// versions would do, the one that is there now is looked up first, and may change meanwhile.
    async fn expected(
        &self,
        key: &Key,
        expect: &MatchCondition,
    ) -> Result<(Expect, bool), DocumentError> {
        Ok(match expect {
            MatchCondition::Any => (Expect::Any, true),
            MatchCondition::Absent => (Expect::Absent, true),
            MatchCondition::OneOf(versions) if versions.len() == 1 => {
                (Expect::Version(versions[0].clone()), true)
            }
            MatchCondition::Present | MatchCondition::OneOf(_) => {
                let current = self.read(key).await?.map(|record| record.version);
                let version = current.filter(|version| expect.allows(version));
                (Expect::Version(version.ok_or(DocumentError::Conflict)?), false)
            }
        })
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>, DocumentError> {
        let asked = Instant::now();
        let answer = self.store.get(key).await;
        histogram!(metric_names::KV_GET).record(asked.elapsed());
        counted("get", &answer, |record| if record.is_some() { "hit" } else { "miss" });
        Ok(answer?)
    }

    async fn write(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, DocumentError> {
        if value.len() > self.limit {
            return Err(DocumentError::TooLarge { limit: self.limit });
        }
        let asked = Instant::now();
        let answer = self.store.put(key, value, expect, ttl).await;
        histogram!(metric_names::KV_SET).record(asked.elapsed());
        counted("put", &answer, |put| match put {
            Put::Stored { .. } => "stored",
            Put::Conflict => "conflict",
        });
        Ok(answer?)
    }
}

impl MatchCondition {
    fn allows(&self, current: &Version) -> bool {
        match self {
            Self::Any | Self::Present => true,
            Self::Absent => false,
            Self::OneOf(versions) => versions.contains(current),
        }
    }
}

fn counted<T>(
    operation: &'static str,
    answer: &Result<T, StoreError>,
    result: impl FnOnce(&T) -> &'static str,
) {
    let result = match answer {
        Ok(answer) => result(answer),
        Err(error) => {
            metric_names::count_store_error(error);
            "error"
        }
    };
    counter!(metric_names::KV_OPERATIONS, "operation" => operation, "result" => result)
        .increment(1);
}

fn parse<T: DeserializeOwned>(record: Record) -> Result<Document<T>, DocumentError> {
    let value = serde_json::from_slice(&record.value)
        .map_err(|error| DocumentError::Corrupt(Some(error)))?;
    Ok(Document { value, version: record.version, expires_in: record.expires_in })
}

/// RFC 7386: members of the patch replace, `null` removes, everything but objects replaces whole.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(members) = target else { unreachable!("made one above") };
    for (name, change) in changes {
        if change.is_null() {
            members.shift_remove(name);
        } else {
            merge(members.entry(name.clone()).or_insert(Value::Null), change);
        }
    }
}
