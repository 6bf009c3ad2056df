//! A relay that works until its queue is empty, and its speed with a sink that discards.

use std::sync::Arc;

use async_trait::async_trait;
use hapax_core::Queue;
use hapax_core::queue::QueueName;
use hapax_relay::{DeliveryError, OutboundMessage, Relay, Sink};
use hapax_workload::{MarkdownTable, Measurement, ProcessGroup, cell, measure_work};

use super::rows::{Countdown, OrderingKeys, fill};
use crate::store_server::{Engine, StoreServer};
use crate::turns::in_rounds;
use crate::{RunArgs, say};

const KEYS: [OrderingKeys; 3] = [OrderingKeys::None, OrderingKeys::Own, OrderingKeys::Shared(10)];
const ROUNDS: u32 = 2;
/// Rows in a second on PostgreSQL.
const AIM: f64 = 40_000.0;

/// Drains this many rows with the relay's default settings, until the store has the outcome of the last
/// one.
pub(super) async fn drain(
    queue: Arc<dyn Queue>,
    sink: Arc<dyn Sink>,
    rows: usize,
    servers: &[ProcessGroup],
) -> anyhow::Result<Measurement> {
    let counting = Arc::new(CountingSink { sink, rows: Countdown::new(rows) });
    let relay = Relay::new(queue.clone(), counting.clone());
    let work = async {
        relay.run(counting.rows.wait()).await;
        counting.rows.ensure_none_left()
    };
    let measured = measure_work(rows as u64, servers, work).await?;
    let depth = queue.depth(&QueueName::outbox(), None).await?;
    anyhow::ensure!(depth.waiting + depth.in_flight + depth.dead == 0, "rows are left: {depth:?}");
    Ok(measured)
}

/// Counts the rows that another sink has got.
struct CountingSink {
    sink: Arc<dyn Sink>,
    rows: Countdown,
}

#[async_trait]
impl Sink for CountingSink {
    fn name(&self) -> &'static str {
        self.sink.name()
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        self.sink.send(message).await?;
        self.rows.count_one();
        Ok(())
    }

    async fn check(&self) -> Result<(), DeliveryError> {
        self.sink.check().await
    }

    fn max_in_flight(&self) -> usize {
        self.sink.max_in_flight()
    }
}

/// A sink that discards everything.
struct DiscardSink;

#[async_trait]
impl Sink for DiscardSink {
    fn name(&self) -> &'static str {
        "nothing"
    }

    async fn send(&self, _message: &OutboundMessage) -> Result<(), DeliveryError> {
        Ok(())
    }
}

pub(super) async fn compare(run: &RunArgs, rows: usize) -> anyhow::Result<()> {
    say(format_args!(
        "## Draining\n\n{rows} rows of about 200 bytes, one relay with its usual settings, a sink \
         that does nothing.\n"
    ))?;
    let mut table = MarkdownTable::default();
    for engine in run.engines() {
        let server = StoreServer::start(engine)?;
        let runs = in_rounds(ROUNDS, KEYS.len(), async |case, round| {
            // A new database for each round, without rows of earlier ones.
            let store = server.store(&format!("drain_{case}_{round}")).await?;
            fill(&*store, rows, KEYS[case]).await?;
            drain(store, Arc::new(DiscardSink), rows, &[server.processes()]).await
        });
        for (keys, run) in KEYS.into_iter().zip(runs.await?) {
            let met = if run.per_second() >= AIM { "met" } else { "NOT met" };
            table.row([
                ("store", engine.name().to_owned()),
                ("keys", keys.name()),
                ("rows/s", cell::rate(run.per_second())),
                ("relay CPU µs/row", cell::micros(Some(run.client_cpu_each()))),
                ("store CPU µs/row", cell::micros(run.server_cpu_each(0))),
                ("aim on PostgreSQL", if engine == Engine::Postgres { met } else { "" }.to_owned()),
            ]);
        }
    }
    say(table)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hapax_core::memory::MemoryStore;

    use super::*;

    #[tokio::test]
    async fn drain_ends_when_everything_is_delivered() {
        for keys in KEYS {
            let store = Arc::new(MemoryStore::default());
            fill(&*store, 2_500, keys).await.unwrap();
            let run = drain(store, Arc::new(DiscardSink), 2_500, &[]).await.unwrap();
            assert_eq!(run.operations, 2_500);
        }
    }
}
