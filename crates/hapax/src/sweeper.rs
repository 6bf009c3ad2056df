use std::sync::Arc;
use std::time::Duration;

use hapax_core::{Store, meters};
use tokio::task::JoinHandle;

/// How many claims and records are deleted in one step.
const BATCH: u32 = 500;

/// Deletes expired claims and records in the background, in small steps, every `every`. Ends with the
/// returned handle being aborted, or with the runtime.
///
/// Expired means gone to every reader already; this only gives the room back.
pub fn sweep_forever(store: Arc<dyn Store>, every: Duration) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(every).await;
            // A full batch means that there is more; a pause between two lets others in.
            while let Ok(swept) = store.sweep(BATCH).await {
                metrics::counter!(meters::SWEPT).increment(swept);
                if swept < u64::from(BATCH) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    })
}
