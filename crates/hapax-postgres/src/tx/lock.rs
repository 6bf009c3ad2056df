//! Retrying a statement whose key is locked by another transaction.

use std::time::Duration;

use hapax_core::{StoreError, StoreResult};
use tokio::time::{Instant, sleep};

/// Waits a little longer before each retry, and gives up a little before the call's timeout, so that
/// the error can name the reason.
pub(crate) struct LockRetry {
    deadline: Instant,
    pause: Duration,
}

impl LockRetry {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { deadline: Instant::now() + timeout * 3 / 4, pause: Duration::from_millis(1) }
    }

    pub(crate) async fn wait(&mut self) -> StoreResult<()> {
        if Instant::now() + self.pause > self.deadline {
            let reason = "an open transaction has written the same key".into();
            return Err(StoreError::Locked { reason });
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(50));
        Ok(())
    }
}
