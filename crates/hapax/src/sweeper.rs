use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Store, StoreResult, metric_names};
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
/// step after `time` has passed. Returns how many were deleted; an error only if no row was deleted
/// before it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax::StoreError> {
/// # use std::time::Duration;
/// let store = hapax::open("memory:", &hapax::StoreConfig::default())?;
/// assert_eq!(hapax::sweep(&*store, 10_000, Duration::from_secs(1)).await?, 0);
/// # Ok(()) }
/// ```
pub async fn sweep(store: &dyn Store, max_rows: u64, time: Duration) -> StoreResult<u64> {
    let begun = Instant::now();
    let mut swept = 0;
    loop {
        let step = BATCH.min(max_rows - swept);
        let deleted = match store.sweep(step as u32).await {
            // Report the rows that were deleted; the next sweep meets the same error.
            Err(_) if swept > 0 => return Ok(swept),
            deleted => deleted?,
        };
        metrics::counter!(metric_names::SWEPT).increment(deleted);
        swept += deleted;
        // An incomplete step means that no expired rows are left.
        if deleted < step || swept >= max_rows || begun.elapsed() >= time {
            return Ok(swept);
        }
        sleep(PAUSE).await;
    }
}
