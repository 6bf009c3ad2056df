use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Store, StoreResult, Swept, metric_names};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// The maximum number of rows that one step deletes.
const BATCH: u64 = 500;
/// The pause between two steps, so that other requests get their turn.
const PAUSE: Duration = Duration::from_millis(10);

/// Deletes expired rows ([`Store::sweep`]) in the background, in small steps, once every
/// `interval`. The task ends when the returned handle is aborted.
///
/// Readers never see expired rows; sweeping only frees their space.
pub fn sweep_forever(store: Arc<dyn Store>, interval: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            sleep(interval).await;
            if let Err(error) = sweep(&*store, u64::MAX, Duration::MAX).await {
                tracing::warn!(reason = error.label(), "sweeping failed: {error}");
            }
        }
    })
}

/// Deletes at most `max_rows` expired rows ([`Store::sweep`]) now, in small steps, and begins no
/// step after `time` has passed. Returns how many were deleted, and whether more may be left; an
/// error only if no row was deleted before it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax::StoreError> {
/// # use std::time::Duration;
/// let store = hapax::open("memory:", &hapax::StoreConfig::default())?;
/// let swept = hapax::sweep(&*store, 10_000, Duration::from_secs(1)).await?;
/// assert_eq!((swept.count, swept.more), (0, false));
/// # Ok(()) }
/// ```
pub async fn sweep(store: &dyn Store, max_rows: u64, time: Duration) -> StoreResult<Swept> {
    let begun = Instant::now();
    let mut count = 0;
    loop {
        let step = BATCH.min(max_rows.saturating_sub(count));
        let swept = match store.sweep(step as u32).await {
            // Report the rows that were deleted; the next sweep meets the same error.
            Err(_) if count > 0 => return Ok(Swept { count, more: true }),
            swept => swept?,
        };
        metrics::counter!(metric_names::SWEPT).increment(swept.count);
        count += swept.count;
        // An incomplete step may have run out of time: only `more` says that nothing is left.
        if !swept.more || count >= max_rows || begun.elapsed() >= time {
            return Ok(Swept { count, more: swept.more });
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use hapax_conformance::{StoreWrapper, WrappedStore};
    use hapax_core::StoreError;
    use hapax_core::memory::MemoryStore;

    use super::*;

    /// Answers the calls of [`Store::sweep`] with these, the last one first.
    struct ScriptedSweeps(MemoryStore, Mutex<Vec<StoreResult<Swept>>>);

    #[async_trait]
    impl StoreWrapper for ScriptedSweeps {
        fn inner(&self) -> &dyn Store {
            &self.0
        }

        async fn sweep(&self, at_most: u32) -> StoreResult<Swept> {
            assert!(at_most > 0);
            self.1.lock().unwrap().pop().expect("a call after nothing was left")
        }
    }

    async fn sweep_scripted(
        answers: impl IntoIterator<Item = StoreResult<Swept>>,
    ) -> StoreResult<Swept> {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        let store = WrappedStore(ScriptedSweeps(MemoryStore::default(), Mutex::new(answers)));
        let swept = sweep(&store, 1000, Duration::MAX).await;
        assert!(store.0.1.lock().unwrap().is_empty(), "the sweep ended too early");
        swept
    }

    fn step(count: u64, more: bool) -> StoreResult<Swept> {
        Ok(Swept { count, more })
    }

    /// A step that ran out of time was once taken for one that found nothing left.
    #[tokio::test(start_paused = true)]
    async fn fault_12_sweep_goes_on_after_an_incomplete_step() {
        let answers = [step(0, true), step(3, true), step(0, true), step(2, false)];
        assert_eq!(sweep_scripted(answers).await.unwrap(), Swept { count: 5, more: false });
        let full = sweep_scripted([step(500, true), step(500, true)]).await.unwrap();
        assert_eq!(full, Swept { count: 1000, more: true });
    }

    #[tokio::test(start_paused = true)]
    async fn sweep_reports_an_error_only_if_nothing_was_deleted() {
        let error = || Err(StoreError::Timeout { timeout: Duration::ZERO });
        let partial = sweep_scripted([step(1, true), error()]).await.unwrap();
        assert_eq!(partial, Swept { count: 1, more: true });
        assert!(sweep_scripted([step(0, true), error()]).await.is_err());
    }
}
