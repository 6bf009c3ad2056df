//! The last entry of a user, which can be edited for an hour.
//!
//! The entry is a record under `user:{user_id}:last_transaction`: plain JSON, readable by other
//! programs on the same Redis. An edit reads it and writes it back by **one** compare-and-put with
//! the version that was read, so that any change in between is detected, even under the same 交易ID.

mod outcome;

use std::sync::Arc;
use std::time::Duration;

use hapax::document::{Document, DocumentError, Documents, MatchCondition};
use hapax::{Key, Records, Tenant, Version, metric_names};
use serde::{Deserialize, Serialize};

pub use outcome::Outcome;

use crate::entry::{BookkeepingEntry, Changes};

/// The default lifetime of a last entry, unless `LAST_TRANSACTION_TTL` is set.
pub const TTL: Duration = Duration::from_secs(3600);

/// The last entries of all users.
///
/// ```
/// use std::sync::Arc;
/// use bookkeeping_bot::entry::{BookkeepingEntry, Changes};
/// use bookkeeping_bot::last::{LastTransaction, Outcome, TTL};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let last = LastTransaction::new(Arc::new(hapax::memory::MemoryStore::default()), TTL);
/// let more = Changes::default().with("原幣金額", 120);
/// assert_eq!(last.update("Uf00d", &more).await.message(), "無可修改的交易記錄");
///
/// last.set("Uf00d", &BookkeepingEntry::example()).await?;
/// assert_eq!(last.update("Uf00d", &more).await, Outcome::Done);
/// assert_eq!(last.get("Uf00d").await?.unwrap().value.amount, 120.0);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct LastTransaction {
    documents: Documents,
    records: Arc<dyn Records>,
    ttl: Duration,
}

/// A stored last entry, with its version and its remaining lifetime.
pub type LastEntry = Document<BookkeepingEntry>;

/// An edit that is prepared but not yet stored: the new entry, and the version that it replaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// The version that was read.
    pub version: String,
    /// The complete new entry.
    pub after: BookkeepingEntry,
}

/// The record key of a user's last entry.
pub fn name(user: &str) -> String {
    format!("user:{user}:last_transaction")
}

impl LastTransaction {
    /// Creates last entries on this store, each living for `ttl` after its last change.
    pub fn new(records: Arc<dyn Records>, ttl: Duration) -> Self {
        Self { documents: Documents::new(records.clone()), records, ttl }
    }

    /// How long an entry can be edited after its last change.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Reads the entry. A missing record, an unreachable store and a corrupt value are distinct
    /// results.
    ///
    /// # Errors
    /// [`DocumentError::Corrupt`] if the stored value is no entry, or breaks a rule of one.
    pub async fn get(&self, user: &str) -> Result<Option<LastEntry>, DocumentError> {
        let found = self.documents.get::<BookkeepingEntry>(&name(user)).await;
        let found = found.and_then(|found| match &found {
            Some(entry) if entry.value.check().is_err() => Err(DocumentError::Corrupt(None)),
            _ => Ok(found),
        });
        match &found {
            Ok(entry) => tracing::info!(found = entry.is_some(), "kv get"),
            Err(error) => log_error("get", error),
        }
        found
    }

    /// Reads the entry that is to be edited, deleted or shown.
    ///
    /// # Errors
    /// The reason why there is none.
    pub async fn existing(&self, user: &str) -> Result<LastEntry, Outcome> {
        let found = self.get(user).await.map_err(|error| Outcome::of_reading(&error))?;
        found.ok_or(Outcome::Missing)
    }

    /// Writes the entry unconditionally.
    pub async fn set(&self, user: &str, entry: &BookkeepingEntry) -> Result<(), DocumentError> {
        self.put(user, entry, &MatchCondition::Any).await
    }

    /// Deletes the entry unconditionally; returns whether there was one.
    pub async fn delete(&self, user: &str) -> Result<bool, DocumentError> {
        match self.delete_if(user, &MatchCondition::Any).await {
            Ok(()) => Ok(true),
            Err(DocumentError::Missing) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Changes fields: [`draft`](Self::draft), then [`store`](Self::store).
    pub async fn update(&self, user: &str, changes: &Changes) -> Outcome {
        match self.draft(user, changes).await {
            Ok(draft) => self.store(user, &draft).await,
            Err(outcome) => outcome,
        }
    }

    /// Reads the entry and prepares the change, without storing it.
    ///
    /// # Errors
    /// The reason why there is nothing to store.
    pub async fn draft(&self, user: &str, changes: &Changes) -> Result<Draft, Outcome> {
        let before = self.existing(user).await?;
        let after = changes.apply(&before.value).map_err(Outcome::Refused)?;
        Ok(Draft { version: before.version.as_str().into(), after })
    }

    /// Stores a draft if the record still has the draft's version: one compare-and-put.
    pub async fn store(&self, user: &str, draft: &Draft) -> Outcome {
        let expect = MatchCondition::from(Version::new(&draft.version));
        match self.put(user, &draft.after, &expect).await {
            Ok(()) => Outcome::Done,
            Err(DocumentError::Conflict) => self.changed_or_expired(user).await,
            Err(error) => Outcome::of_writing(&error),
        }
    }

    /// Deletes the record if it still has this version.
    pub async fn withdraw(&self, user: &str, version: &str) -> Outcome {
        let expect = MatchCondition::from(Version::new(version));
        match self.delete_if(user, &expect).await {
            Ok(()) => Outcome::Done,
            Err(DocumentError::Conflict | DocumentError::Missing) => {
                self.changed_or_expired(user).await
            }
            Err(error) => Outcome::of_writing(&error),
        }
    }

    /// Chooses the outcome after a conflict, in which nothing was written.
    async fn changed_or_expired(&self, user: &str) -> Outcome {
        match self.get(user).await {
            Ok(None) => Outcome::Expired,
            _ => Outcome::Changed,
        }
    }

    /// The version stored now, whether or not the value is an entry; for
    /// [`replace`](Self::replace). Counts neither as a hit nor as a miss, because the user reads no
    /// entry here; a failure is counted.
    pub async fn look(&self, user: &str) -> Result<Option<Version>, DocumentError> {
        let looked = self.records.get(&Key::record(&Tenant::default(), &name(user))?).await;
        let version = looked.map(|found| found.map(|record| record.version));
        version.map_err(DocumentError::from).inspect_err(|error| {
            metrics::counter!(metric_names::KV_OPERATIONS, "operation" => "get", "result" => "error")
                .increment(1);
            log_error("get", error);
        })
    }

    /// Writes an entry if the record still is what [`look`](Self::look) saw; `false` if it has
    /// changed.
    pub async fn replace(
        &self,
        user: &str,
        seen: Option<Version>,
        entry: &BookkeepingEntry,
    ) -> Result<bool, DocumentError> {
        let expect = seen.map_or(MatchCondition::Absent, MatchCondition::from);
        match self.put(user, entry, &expect).await {
            Ok(()) => Ok(true),
            Err(DocumentError::Conflict) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn put(
        &self,
        user: &str,
        entry: &BookkeepingEntry,
        expect: &MatchCondition,
    ) -> Result<(), DocumentError> {
        let put = self.documents.put(&name(user), entry, expect, Some(self.ttl)).await.map(drop);
        match &put {
            Ok(()) | Err(DocumentError::Conflict) => {
                tracing::info!(success = put.is_ok(), "kv set");
            }
            Err(error) => log_error("set", error),
        }
        put
    }

    async fn delete_if(&self, user: &str, expect: &MatchCondition) -> Result<(), DocumentError> {
        let deleted = self.documents.delete(&name(user), expect).await;
        match &deleted {
            Ok(()) | Err(DocumentError::Conflict | DocumentError::Missing) => {
                tracing::info!(success = deleted.is_ok(), "kv delete");
            }
            Err(error) => log_error("delete", error),
        }
        deleted
    }
}

/// A label for the log; a driver's message may be personal.
pub(crate) fn label(error: &DocumentError) -> &'static str {
    match error {
        DocumentError::Store(error) => error.label(),
        DocumentError::Contended => "contended",
        DocumentError::Corrupt(_) => "no entry",
        _ => "refused",
    }
}

fn log_error(operation: &str, error: &DocumentError) {
    tracing::error!(operation, reason = label(error), "kv error");
}
