use std::time::Duration;

use hapax_core::StoreError;
use tokio::time::{Instant, sleep};

/// Waits a little longer each time for a lock that another transaction holds, and gives up a
/// little before the call's limit, so that the error can say why.
pub(crate) struct Patience {
    until: Instant,
    pause: Duration,
}

impl Patience {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { until: Instant::now() + limit * 3 / 4, pause: Duration::from_millis(1) }
    }

    pub(crate) async fn wait(&mut self) -> Result<(), StoreError> {
        if Instant::now() + self.pause > self.until {
            let reason = "an open transaction has written the same key".into();
            return Err(StoreError::Locked { reason });
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(50));
        Ok(())
    }
}
