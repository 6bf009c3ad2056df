//! `Records`, the second primitive: a value with a version and a TTL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Key, StoreResult};

/// A value with a version and a TTL, changed by compare-and-put.
///
/// # Laws
///
/// 1. **Atomic.** Comparison and change are one step: of two puts that expect the same version,
///    one is stored.
/// 2. **Versions** are opaque. A put of other bytes gives another version; an equal version means
///    equal bytes.
/// 3. **TTL.** A put with a TTL replaces the record's TTL. A put without one keeps the remaining
///    TTL; a new record without one does not expire. Reading never renews the TTL. An expired
///    record is absent.
/// 4. **Values** are returned byte for byte as they were stored.
///
/// ```
/// use hapax_core::{memory::MemoryStore, Expect, Key, Put, Records, Tenant};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MemoryStore::default();
/// let key = Key::record(&Tenant::default(), "user:U1:last_transaction")?;
///
/// let Put::Stored { version: first, created: true } =
///     store.put(&key, "100".into(), &Expect::Absent, None).await? else { panic!() };
/// let Put::Stored { .. } =
///     store.put(&key, "120".into(), &Expect::Version(first.clone()), None).await? else { panic!() };
/// // The same expectation again: another writer was faster.
/// let late = store.put(&key, "90".into(), &Expect::Version(first), None).await?;
/// assert!(matches!(late, Put::Conflict));
/// assert_eq!(store.get(&key).await?.unwrap().value, "120");
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Records: Send + Sync {
    /// Reads a record; `None` if it is absent.
    async fn get(&self, key: &Key) -> StoreResult<Option<Record>>;

    /// Writes a record if the expectation holds.
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> StoreResult<Put>;

    /// Deletes a record if the expectation holds.
    async fn delete(&self, key: &Key, expect: &Expect) -> StoreResult<Deleted>;
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The stored bytes.
    pub value: Bytes,
    /// The version of the value.
    pub version: Version,
    /// How long until the record expires; `None` if it does not.
    pub expires_in: Option<Duration>,
}

/// The version of a record's value. Opaque; printable ASCII without quotes, so that it can be an
/// ETag.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// A version from the text that a store or a caller supplies.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }

    /// The version as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({})", self.0)
    }
}

/// The precondition of a put or delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No precondition.
    Any,
    /// The record is absent.
    Absent,
    /// The record has this version.
    Version(Version),
}

impl Expect {
    /// Whether the precondition holds for the stored version (`None` if the record is absent).
    pub fn holds(&self, current: Option<&Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// The result of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a conflict stored nothing"]
pub enum Put {
    /// The value was stored.
    Stored {
        /// The new version.
        version: Version,
        /// Whether the record was absent before.
        created: bool,
    },
    /// The expectation did not hold; nothing was changed.
    Conflict,
}

/// The result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a conflict deleted nothing"]
pub enum Deleted {
    /// The record was deleted.
    Done,
    /// The record was absent, whatever the expectation.
    Missing,
    /// The expectation did not hold; nothing was changed.
    Conflict,
}
