use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Deleted, Expect, Key, Put, Record, StoreError};

use super::lock::LockRetry;
use super::{HapaxTransaction, PostgresTransaction, run_with_timeout};
use crate::records;

impl<T: HapaxTransaction> PostgresTransaction<'_, T> {
    /// Reads a record, as your transaction sees it.
    pub async fn get(&mut self, key: &Key) -> Result<Option<Record>, StoreError> {
        run_with_timeout(self.timeout, records::get(self.tx, key)).await
    }

    /// Writes a record if the expectation holds.
    pub async fn put(
        &mut self,
        key: &Key,
        value: Bytes,
        expect: &Expect,
        ttl: Option<Duration>,
    ) -> Result<Put, StoreError> {
        let put = records::put(self.tx, LockRetry::new(self.timeout), key, &value, expect, ttl);
        run_with_timeout(self.timeout, put).await
    }

    /// Deletes a record if the expectation holds.
    pub async fn delete(&mut self, key: &Key, expect: &Expect) -> Result<Deleted, StoreError> {
        let delete = records::delete(self.tx, LockRetry::new(self.timeout), key, expect);
        run_with_timeout(self.timeout, delete).await
    }
}
