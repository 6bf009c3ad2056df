//! A relay that works until its queue is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use hapax_bench::Processes;
use hapax_core::Queue;
use hapax_core::queue::QueueName;
use hapax_relay::{DeliveryError, OutboundMessage, Relay, Sink};
use tokio::sync::Notify;

use super::run::Run;

/// A relay that delivers nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// Drains what was filled in with so many rows, with the relay's own settings; until the store knows
/// what became of the last one.
pub(super) async fn drain(
    queue: Arc<dyn Queue>,
    sink: Arc<dyn Sink>,
    rows: usize,
    servers: &[Processes],
) -> anyhow::Result<Run> {
    let counting = Arc::new(Counting { sink, left: AtomicUsize::new(rows), empty: Notify::new() });
    let relay = Relay::new(queue.clone(), counting.clone());
    let work = async {
        let mut stuck = false;
        relay.run(counting.wait(&mut stuck)).await;
        anyhow::ensure!(!stuck, "the relay is stuck: {} rows left", counting.left.load(Relaxed));
        Ok(())
    };
    let run = Run::of(rows, servers, work).await?;
    let depth = queue.depth(&QueueName::outbox(), None).await?;
    anyhow::ensure!(depth.waiting + depth.in_flight + depth.dead == 0, "rows are left: {depth:?}");
    Ok(run)
}

/// A sink, and how many rows it still has to get.
struct Counting {
    sink: Arc<dyn Sink>,
    left: AtomicUsize,
    empty: Notify,
}

impl Counting {
    async fn wait(&self, stuck: &mut bool) {
        let mut left = usize::MAX;
        loop {
            tokio::select! {
                () = self.empty.notified() => return,
                () = tokio::time::sleep(PATIENCE) => {}
            }
            let now = self.left.load(Relaxed);
            if now == left {
                *stuck = true;
                return;
            }
            left = now;
        }
    }
}

#[async_trait]
impl Sink for Counting {
    fn name(&self) -> &'static str {
        self.sink.name()
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        self.sink.send(message).await?;
        // Below zero only where one was sent twice, which is no reason to go on.
        if self.left.fetch_sub(1, Relaxed) <= 1 {
            self.empty.notify_one();
        }
        Ok(())
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        self.sink.check().await
    }

    fn max_in_flight(&self) -> usize {
        self.sink.max_in_flight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::fill::{Keys, fill};
    use crate::relay::nothing::Nothing;
    use hapax_core::memory::MemoryStore;

    #[tokio::test]
    async fn a_drain_ends_when_everything_is_delivered() {
        for keys in [Keys::None, Keys::Own, Keys::Shared(10)] {
            let store = Arc::new(MemoryStore::default());
            fill(&*store, 2_500, keys).await.unwrap();
            let run = drain(store, Arc::new(Nothing), 2_500, &[]).await.unwrap();
            assert_eq!(run.rows, 2_500);
        }
    }
}
