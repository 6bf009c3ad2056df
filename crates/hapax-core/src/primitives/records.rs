//! `Records`, the second primitive: a value with a version and a TTL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{Key, StoreError};

/// A value with a version and a TTL, changed by compare-and-put.
///
/// # Laws
///
/// 1. **Atomic.** Expectation and change are one step: of two puts that expect the same version,
///    one is stored.
/// 2. **Versions** are opaque. A put of other bytes gives another version; an equal version means
///    equal bytes.
/// 3. **TTL.** A put with one replaces it; a put without one keeps what is left, and a new record
///    without one does not expire. Reading never renews. An expired record is absent.
/// 4. **Bytes come back as they went in.**
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
/// // The same expectation again: somebody was faster.
/// let late = store.put(&key, "90".into(), &Expect::Version(first), None).await?;
/// assert!(matches!(late, Put::Conflict));
/// assert_eq!(store.get(&key).await?.unwrap().value, "120");
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Records: Send + Sync {
    /// Reads.
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError>;

    /// Writes, where the expectation holds.
    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError>;

    /// Deletes, where the expectation holds.
    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError>;
}

/// A stored value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The bytes.
    pub value: Bytes,
    /// Which value it is.
    pub version: Version,
    /// How long it is still there; `None` for ever.
    pub expires_in: Option<Duration>,
}

/// Which value of a record it is. Opaque; printable ASCII without quotes, so that it can be an ETag.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// A version as a store or a caller gives it.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({})", self.0)
    }
}

/// What a put or delete expects to find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Anything, or nothing.
    Any,
    /// Nothing.
    Absent,
    /// This version.
    Version(Version),
}

impl Expect {
    /// Whether it holds for what is stored now.
    pub fn holds(&self, current: Option<&Version>) -> bool {
        match self {
            Self::Any => true,
            Self::Absent => current.is_none(),
            Self::Version(version) => current == Some(version),
        }
    }
}

/// What became of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a conflict stored nothing"]
pub enum Put {
    /// Stored.
    Stored {
        /// As this version.
        version: Version,
        /// Whether there was none before.
        created: bool,
    },
    /// The expectation did not hold; nothing was changed.
    Conflict,
}

/// What became of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a conflict deleted nothing"]
pub enum Deleted {
    /// It is gone.
    Done,
    /// There was nothing, whatever was expected.
    Missing,
    /// The expectation did not hold; nothing was changed.
    Conflict,
}
