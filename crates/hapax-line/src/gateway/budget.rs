use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// What the store may cost one event in all: a bot must answer also where every call is slow.
pub(crate) struct Budget(Mutex<Duration>);

impl Budget {
    pub(crate) fn new(whole: Duration) -> Self {
        Self(Mutex::new(whole))
    }

    /// Lets a call take what is left; `None` where that was not enough.
    pub(crate) async fn spend<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let left = *self.left();
        if left.is_zero() {
            return None;
        }
        let since = Instant::now();
        let answer = timeout(left, call).await.ok();
        let mut left = self.left();
        *left = left.saturating_sub(since.elapsed());
        answer
    }

    fn left(&self) -> std::sync::MutexGuard<'_, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
