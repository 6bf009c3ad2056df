use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Store, StoreError, metric_names};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How many claims and records are deleted in one step.
const BATCH: u64 = 500;
/// Between two steps: requests come first.
const PAUSE: Duration = Duration::from_millis(10);

/// Deletes expired claims and records in the background, in small steps, every `every`. Ends with the
/// returned handle being aborted, or with the runtime.
///
/// Expired means gone to every reader already; this only gives the room back.
pub fn sweep_forever(store: Arc<dyn Store>, every: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            sleep(every).await;
            if let Err(error) = sweep(&*store, u64::MAX, Duration::MAX).await {
                tracing::warn!(reason = error.label(), "sweeping failed: {error}");
            }
        }
    })
}

/// Deletes expired claims and records now, in small steps: at most `at_most`, and no new step once
/// `time` is over. How many it were; an error where not even the first step was taken.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), hapax::StoreError> {
/// # use std::time::Duration;
/// let store = hapax::open("memory:", &hapax::StoreConfig::default()).await?;
/// assert_eq!(hapax::sweep(&*store, 10_000, Duration::from_secs(1)).await?, 0);
/// # Ok(()) }
/// ```
pub async fn sweep(store: &dyn Store, at_most: u64, time: Duration) -> Result<u64, StoreError> {
    let begun = Instant::now();
    let mut swept = 0;
    loop {
        let step = BATCH.min(at_most - swept);
        let gone = match store.sweep(step as u32).await {
            // What is gone is gone, and is told of; the next sweep meets the same error.
            Err(_) if swept > 0 => return Ok(swept),
            gone => gone?,
        };
        metrics::counter!(metric_names::SWEPT).increment(gone);
        swept += gone;
        // Less than a whole step means that there is no more.
        if gone < step || swept >= at_most || begun.elapsed() >= time {
            return Ok(swept);
        }
        sleep(PAUSE).await;
    }
}
