//! Log lines about the store for operators: the operation and its result, never the user or the
//! entry.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax::document::DocumentError;
use hapax::{Deleted, Expect, Key, Put, Record, Records, StoreError};

/// A store that logs the result of every call.
pub(super) struct Logged(pub(super) Arc<dyn Records>);

#[async_trait]
impl Records for Logged {
    async fn get(&self, key: &Key) -> Result<Option<Record>, StoreError> {
        let answer = self.0.get(key).await;
        match &answer {
            Ok(record) => tracing::info!(found = record.is_some(), "kv get"),
            Err(error) => failed("get", error.label()),
        }
        answer
    }

    async fn put(
        &self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let answer = self.0.put(key, value, expect, ttl).await;
        match &answer {
            Ok(put) => tracing::info!(success = matches!(put, Put::Stored { .. }), "kv set"),
            Err(error) => failed("set", error.label()),
        }
        answer
    }

    async fn delete(&self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let answer = self.0.delete(key, expect).await;
        match &answer {
            Ok(deleted) => tracing::info!(success = *deleted == Deleted::Done, "kv delete"),
            Err(error) => failed("delete", error.label()),
        }
        answer
    }
}

/// Logs a stored value that is no entry.
pub(super) fn unreadable(error: &DocumentError) {
    if matches!(error, DocumentError::Corrupt(_)) {
        failed("get", "no entry");
    }
}

fn failed(operation: &str, reason: &str) {
    tracing::error!(operation, reason, "kv error");
}
