use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Claims, Log, Oversight, Queue, Records, StoreError, StoreResult, Timestamp};

/// A complete store: all primitives, and the checks and maintenance for operators.
///
/// # Laws
///
/// 1. A handle can be opened while the server is unreachable. It connects as soon as it can, and
///    again after the connection was lost.
/// 2. Every call ends within the store's time limit, with an answer or a [`StoreError`].
#[async_trait]
pub trait Store: Claims + Records + Log + Queue + Oversight + 'static {
    /// The name for logs and metric labels: `sqlite`, `memory`, `redis` or `postgres`.
    fn name(&self) -> &'static str;

    /// Checks that the store answers and can be used.
    async fn ping(&self) -> StoreResult<()>;

    /// The clock of the store's server, by which leases and retentions are measured there; of several
    /// servers the one that is furthest ahead. `None` for a store whose clock nobody can set.
    async fn server_time(&self) -> StoreResult<Option<Timestamp>> {
        Ok(None)
    }

    /// Checks the store's settings: which of them break a promise, and how to fix them.
    async fn examine(&self) -> StoreResult<Vec<Finding>>;

    /// Deletes at most `at_most` expired claims, records, jobs and done items. A call may end before
    /// that, to stay within the time limit: [`Swept::more`] says whether to call it again. Stores
    /// that expire data by themselves delete nothing here.
    async fn sweep(&self, at_most: u32) -> StoreResult<Swept>;
}

/// The result of [`Store::sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// How many rows were deleted. A store that deletes a job's entries apart from the job counts
    /// them too, or counts a large job once for each piece.
    pub count: u64,
    /// Whether expired rows may be left. If not, all that had expired when the call began is gone.
    pub more: bool,
}

/// How much opening a store may change. Stores without tables take every mode alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpenMode {
    /// Creates missing tables, and brings older ones up to date.
    #[default]
    Migrate,
    /// Uses tables that are there and up to date, and refuses others: for programs that look into a store
    /// which they do not own.
    Existing,
    /// Changes nothing at all, also where there are no tables yet. Writes are refused.
    ReadOnly,
}

/// The result of one check of `hapax doctor`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The short stable name of the check (`redis.eviction`).
    pub check: &'static str,
    /// The severity of the finding.
    pub severity: Severity,
    /// The observed setting or state, with numbers.
    pub detail: String,
    /// The promise that the setting breaks, if any.
    pub breaks: Option<Promise>,
    /// How to fix it; empty if nothing is wrong.
    pub fix: String,
}

impl Finding {
    /// A check that found nothing wrong.
    pub fn fine(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Fine,
            detail: detail.into(),
            breaks: None,
            fix: String::new(),
        }
    }

    /// The store works, but a promise is weaker than documented.
    pub fn warn(
        check: &'static str,
        breaks: Promise,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (detail, fix) = (detail.into(), fix.into());
        Self { check, severity: Severity::Warn, detail, breaks: Some(breaks), fix }
    }

    /// The store must not be used with this setting.
    pub fn refuse(
        check: &'static str,
        breaks: Promise,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Refuse, ..Self::warn(check, breaks, detail, fix) }
    }

    /// This finding, or where all is well the same check as [`Finding::fine`].
    pub fn unless(self, is_fine: bool, detail: impl Into<String>) -> Self {
        if is_fine { Self::fine(self.check, detail) } else { self }
    }
}

/// The severity of a [`Finding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is wrong.
    Fine,
    /// The server starts, and logs a warning.
    Warn,
    /// The server does not start.
    Refuse,
}

/// A promise of hapax. A [`Finding`] names the promise that a setting breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// Acknowledged data is not lost.
    Durable,
    /// A claim has one owner at a time.
    MutualExclusion,
    /// A duplicate is recognised during the whole retention.
    Remembered,
    /// Fences only grow.
    FencesGrow,
    /// Every call ends within its time limit.
    BoundedTime,
}

impl Promise {
    /// The promise as a sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Durable => "what was acknowledged is not lost",
            Self::MutualExclusion => "a claim has one owner at a time",
            Self::Remembered => "a duplicate is recognised for as long as the retention says",
            Self::FencesGrow => "fences only grow",
            Self::BoundedTime => "every call ends within its time limit",
        }
    }
}

/// Runs a store call within its time limit.
pub async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = StoreResult<T>>,
) -> StoreResult<T> {
    tokio::time::timeout(timeout, call).await.unwrap_or(Err(StoreError::Timeout { timeout }))
}
