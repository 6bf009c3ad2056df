use std::future::Future;
use std::time::Duration;

use async_trait::async_trait;

use crate::{Claims, Log, Oversight, Queue, Records, StoreError};

/// A whole store: every primitive, and what an operator needs to know about it.
///
/// # Laws
///
/// 1. Opening a handle does not need the store to be reachable; it connects when it can, and again
///    after it was lost.
/// 2. Every call ends within the store's time limit, with an answer or a [`StoreError`].
#[async_trait]
pub trait Store: Claims + Records + Log + Queue + Oversight + 'static {
    /// `sqlite`, `memory`, `redis` or `postgres`: for logs and metric labels.
    fn name(&self) -> &'static str;

    /// Whether it answers and can be used.
    async fn ping(&self) -> Result<(), StoreError>;

    /// What would break which promise, and how to fix it.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError>;

    /// Deletes at most `at_most` claims, records, jobs and done items that have expired; how many it were. Stores
    /// that forget by themselves do nothing.
    async fn sweep(&self, at_most: u32) -> Result<u64, StoreError>;
}

/// One thing that `hapax doctor` looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// A short stable name of the check (`redis.eviction`).
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What was found, with numbers.
    pub detail: String,
    /// The promise that it breaks, where it breaks one.
    pub breaks: Option<Promise>,
    /// What to do about it; empty where nothing is wrong.
    pub fix: String,
}

impl Finding {
    /// Nothing wrong here.
    pub fn fine(check: &'static str, detail: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Fine,
            detail: detail.into(),
            breaks: None,
            fix: String::new(),
        }
    }

    /// Works, but a promise is weaker than documented.
    pub fn warn(
        check: &'static str,
        breaks: Promise,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (detail, fix) = (detail.into(), fix.into());
        Self { check, severity: Severity::Warn, detail, breaks: Some(breaks), fix }
    }

    /// Must not be used like this.
    pub fn refuse(
        check: &'static str,
        breaks: Promise,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { severity: Severity::Refuse, ..Self::warn(check, breaks, detail, fix) }
    }
}

/// How bad a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Starts, and says so.
    Warn,
    /// Does not start.
    Refuse,
}

/// What hapax promises; named by the findings that break it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Promise {
    /// What was acknowledged is not lost.
    Durable,
    /// One owner at a time.
    MutualExclusion,
    /// A duplicate is recognised for as long as the retention says.
    Remembered,
    /// Fences only grow.
    FencesGrow,
    /// Every call ends within its limit.
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
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(timeout, call).await.unwrap_or(Err(StoreError::Timeout { timeout }))
}
