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
//! // Reads, changes and writes back, and starts over where another writer was faster.
//! let changed = documents.update(name, None, |entry: &mut Entry| entry.amount = 120).await?;
//! assert_eq!(changed.value.amount, 120);
//! assert!(matches!(documents.update("user:U2:last_transaction", None, |_: &mut Entry| ()).await, Err(DocumentError::Missing)));
//! # Ok(()) }
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use metrics::{counter, histogram};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::Instant;

use crate::activity::{self, Activity};
use crate::{
    Deleted, Expect, InvalidKey, Key, Put, Record, Records, StoreError, StoreResult, Tenant,
    Version, metric_names,
};

/// How often a change starts over before it gives up.
const MAX_TRIES: usize = 16;

/// Why a record was not read or written. Missing, unreachable and corrupt are three variants.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// There is no such record.
    #[error("there is no such record")]
    Missing,
    /// The record is not the expected version; nothing was changed.
    #[error("the record is not the expected version")]
    Conflict,
    /// Other writers kept changing the record; nothing was changed.
    #[error("others changed the record {MAX_TRIES} times in a row; try again")]
    Contended,
    /// The record would exceed [`Documents::max_bytes`]; nothing was changed.
    #[error("a record takes at most {limit} bytes")]
    TooLarge {
        /// The largest size in bytes.
        limit: usize,
    },
    /// The stored value is not JSON, or not of the expected type.
    #[error("the stored record cannot be read")]
    Corrupt(#[source] Option<serde_json::Error>),
    /// The value cannot be written as JSON.
    #[error("the value cannot be written as JSON")]
    Unwritable(#[source] serde_json::Error),
    /// The name is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidKey),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

impl DocumentError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Contended => true,
            Self::Store(error) => error.is_retryable(),
            _ => false,
        }
    }
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
#[non_exhaustive]
pub struct Document<T> {
    /// The content.
    pub value: T,
    /// The version.
    pub version: Version,
    /// How long until it expires; `None` for never.
    pub expires_in: Option<Duration>,
}

/// A precondition of a change, like HTTP's `If-Match` and `If-None-Match`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MatchCondition {
    /// None: the record may exist or not.
    Any,
    /// The record does not exist (`If-None-Match: *`).
    Absent,
    /// The record exists (`If-Match: *`).
    Present,
    /// The record has one of these versions (`If-Match: "1", "2"`).
    OneOf(Vec<Version>),
}

impl From<Version> for MatchCondition {
    fn from(version: Version) -> Self {
        Self::OneOf(vec![version])
    }
}

/// The result of a [`Documents::put`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredDocument {
    /// The new version.
    pub version: Version,
    /// Whether the record is new.
    pub created: bool,
}

/// Documents of one tenant.
#[derive(Clone)]
pub struct Documents {
    store: Arc<dyn Records>,
    tenant: Tenant,
    max_bytes: usize,
}

impl Documents {
    /// Documents of the default tenant on this store.
    pub fn new(store: Arc<dyn Records>) -> Self {
        Self { store, tenant: Tenant::default(), max_bytes: 1024 * 1024 }
    }

    crate::builder_methods! {
        /// Documents of another tenant.
        tenant: Tenant;
        /// The largest document, in bytes of JSON, also after a patch or an update; 1 MiB by default.
        max_bytes: usize;
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
        for _ in 0..MAX_TRIES {
            let (expected, is_final) = self.expected(&key, expect).await?;
            match self.write(&key, json.clone(), &expected, ttl).await? {
                Put::Stored { version, created } => return Ok(StoredDocument { version, created }),
                Put::Conflict if is_final => return Err(outdated(&key)),
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
        self.patch_checked(name, patch, expect, ttl, |_| Ok(())).await
    }

    /// Like [`Documents::patch`]. `check` gets the stored JSON before it is parsed, again each time the
    /// patch starts over, and may refuse it: a tree takes far more memory than its text.
    pub async fn patch_checked<E: From<DocumentError>>(
        &self,
        name: &str,
        patch: &Value,
        expect: &MatchCondition,
        ttl: Option<Duration>,
        check: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Document<Value>, E> {
        self.change(name, expect, ttl, check, |value| merge(value, patch)).await
    }

    /// Reads, changes and writes back; starts over where another writer was faster, so `change` may
    /// run several times.
    pub async fn update<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        ttl: Option<Duration>,
        change: impl FnMut(&mut T),
    ) -> Result<Document<T>, DocumentError> {
        self.change(name, &MatchCondition::Any, ttl, |_| Ok(()), change).await
    }

    async fn change<T: Serialize + DeserializeOwned, E: From<DocumentError>>(
        &self,
        name: &str,
        expect: &MatchCondition,
        ttl: Option<Duration>,
        mut check: impl FnMut(&[u8]) -> Result<(), E>,
        mut change: impl FnMut(&mut T),
    ) -> Result<Document<T>, E> {
        let key = Key::record(&self.tenant, name).map_err(DocumentError::from)?;
        for _ in 0..MAX_TRIES {
            let Some(record) = self.read(&key).await? else {
                let missing = match expect {
                    MatchCondition::Any | MatchCondition::Absent => DocumentError::Missing,
                    MatchCondition::Present | MatchCondition::OneOf(_) => DocumentError::Conflict,
                };
                return Err(missing.into());
            };
            if !expect.allows(&record.version) {
                return Err(outdated(&key).into());
            }
            check(&record.value)?;
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
        Err(DocumentError::Contended.into())
    }

    /// Deletes a document where the expectation holds.
    pub async fn delete(&self, name: &str, expect: &MatchCondition) -> Result<(), DocumentError> {
        let key = Key::record(&self.tenant, name)?;
        for _ in 0..MAX_TRIES {
            let (expected, is_final) = self.expected(&key, expect).await?;
            let delete = self.store.delete(&key, &expected);
            let deleted =
                measured(metric_names::KV_SET, "delete", delete, |deleted| match deleted {
                    Deleted::Done => "deleted",
                    Deleted::Missing => "miss",
                    Deleted::Conflict => "conflict",
                });
            match deleted.await? {
                Deleted::Done => return Ok(()),
                Deleted::Missing if *expect == MatchCondition::Any => {
                    return Err(DocumentError::Missing);
                }
                _ if is_final => return Err(outdated(&key)),
                _ => {}
            }
        }
        Err(DocumentError::Contended)
    }

    /// The expectation for the primitive, and whether its refusal is final. Where several versions
    /// match, the current one is read first, and may change before the write.
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
                (Expect::Version(version.ok_or_else(|| outdated(key))?), false)
            }
        })
    }

    async fn read(&self, key: &Key) -> Result<Option<Record>, DocumentError> {
        let label = |record: &Option<_>| if record.is_some() { "hit" } else { "miss" };
        measured(metric_names::KV_GET, "get", self.store.get(key), label).await
    }

    async fn write(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, DocumentError> {
        if value.len() > self.max_bytes {
            return Err(DocumentError::TooLarge { limit: self.max_bytes });
        }
        let put = self.store.put(key, value, expect, ttl);
        measured(metric_names::KV_SET, "put", put, |put| match put {
            Put::Stored { .. } => "stored",
            Put::Conflict => "conflict",
        })
        .await
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

/// The error of a write that expected another version, recorded as activity.
fn outdated(key: &Key) -> DocumentError {
    activity::record(Activity::Outdated(key));
    DocumentError::Conflict
}

/// Makes a store call, measures and counts it.
async fn measured<T>(
    latency: &'static str,
    operation: &'static str,
    call: impl Future<Output = StoreResult<T>>,
    label: impl FnOnce(&T) -> &'static str,
) -> Result<T, DocumentError> {
    let asked = Instant::now();
    let answer = call.await;
    histogram!(latency).record(asked.elapsed());
    let result = answer.as_ref().inspect_err(|error| metric_names::count_store_error(error));
    let result = result.map_or("error", label);
    counter!(metric_names::KV_OPERATIONS, "operation" => operation, "result" => result)
        .increment(1);
    Ok(answer?)
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
