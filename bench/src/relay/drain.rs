//! A relay that works until its queue is empty, and its speed with a sink that discards.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::Queue;
use hapax_core::queue::QueueName;
use hapax_relay::{DeliveryError, OutboundMessage, Relay, Sink};
use hapax_workload::{MarkdownTable, ProcessGroup, cell};
use tokio::sync::Notify;

use super::rows::{OrderingKeys, RelayRun, add, fill};
use crate::store_server::{Engine, StoreServer};
use crate::{progress, say};

/// A relay that delivers nothing for this long is stuck.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Drains this many rows with the relay's default settings, until the store has the outcome of the last
/// one.
pub(super) async fn drain(
    queue: Arc<dyn Queue>,
    sink: Arc<dyn Sink>,
    rows: usize,
    servers: &[ProcessGroup],
) -> anyhow::Result<RelayRun> {
    let counting = Arc::new(Counting { sink, left: AtomicUsize::new(rows), empty: Notify::new() });
    let relay = Relay::new(queue.clone(), counting.clone());
    let work = async {
        let mut stuck = false;
        relay.run(counting.wait(&mut stuck)).await;
        anyhow::ensure!(!stuck, "the relay is stuck: {} rows left", counting.left.load(Relaxed));
        Ok(())
    };
    let run = RelayRun::of(rows, servers, work).await?;
    let depth = queue.depth(&QueueName::outbox(), None).await?;
    anyhow::ensure!(depth.waiting + depth.in_flight + depth.dead == 0, "rows are left: {depth:?}");
    Ok(run)
}

/// A sink that counts down the rows it still has to get.
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
                () = tokio::time::sleep(TIMEOUT) => {}
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
        // The count falls below zero only where a row was sent twice; end then, too.
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

const KEYS: [OrderingKeys; 3] = [OrderingKeys::None, OrderingKeys::Own, OrderingKeys::Shared(10)];
const ROUNDS: usize = 2;
/// Rows in a second on PostgreSQL.
const AIM: f64 = 40_000.0;

/// A sink that discards everything.
pub(super) struct DiscardSink;

#[async_trait]
impl Sink for DiscardSink {
    fn name(&self) -> &'static str {
        "nothing"
    }

    async fn send(&self, _message: &OutboundMessage) -> Result<(), DeliveryError> {
        Ok(())
    }
}

pub(super) async fn compare(engines: &[Engine], rows: usize) -> anyhow::Result<()> {
    say(&format!(
        "## Draining\n\n{rows} rows of about 200 bytes, one relay with its usual settings, a sink \
         that does nothing.\n"
    ))?;
    let mut table = MarkdownTable::new([
        "store",
        "keys",
        "rows/s",
        "relay CPU µs/row",
        "store CPU µs/row",
        "aim on PostgreSQL",
    ]);
    for engine in engines {
        let server = StoreServer::start(*engine)?;
        for keys in KEYS {
            let mut sum = None;
            for round in 0..ROUNDS {
                let store = server.store(&database(keys, round)).await?;
                fill(&*store, rows, keys).await?;
                add(
                    &mut sum,
                    drain(store, Arc::new(DiscardSink), rows, &[server.processes()]).await?,
                );
                progress(".");
            }
            let Some(run) = sum else { continue };
            let met = if run.per_second() >= AIM { "met" } else { "NOT met" };
            table.row([
                engine.name().to_owned(),
                keys.name(),
                cell::rate(run.per_second()),
                cell::micros(Some(run.client_cpu_each())),
                cell::micros(run.server_cpu_each(0).filter(|_| !server.processes().is_empty())),
                if *engine == Engine::Postgres { met.into() } else { String::new() },
            ]);
        }
    }
    progress("\n");
    say(&table.to_string())?;
    Ok(())
}

/// A new database for each round, without rows of earlier ones.
fn database(keys: OrderingKeys, round: usize) -> String {
    let keys = match keys {
        OrderingKeys::None => "none",
        OrderingKeys::Own => "own",
        OrderingKeys::Shared(_) => "shared",
    };
    format!("drain_{keys}_{round}")
}

#[cfg(test)]
mod tests {
    use hapax_core::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn drain_ends_when_everything_is_delivered() {
        for keys in [OrderingKeys::None, OrderingKeys::Own, OrderingKeys::Shared(10)] {
            let store = Arc::new(MemoryStore::default());
            fill(&*store, 2_500, keys).await.unwrap();
            let run = drain(store, Arc::new(DiscardSink), 2_500, &[]).await.unwrap();
            assert_eq!(run.rows, 2_500);
        }
    }
}
