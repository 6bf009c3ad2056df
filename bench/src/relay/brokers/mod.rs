//! A relay into each broker, beside what the broker's own client gets confirmed.

pub(super) mod clients;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use hapax_relay::Sink;
use hapax_workload::{
    BenchOperation, BenchPlan, BenchSpan, MarkdownTable, Measurement, ProcessGroup, cell, measure,
};

use super::drain::drain;
use super::rows::{OrderingKeys, fill};
use crate::store_server::{Engine, StoreServer};
use crate::turns::in_rounds;
use crate::{RunArgs, say};

const ROUNDS: u32 = 2;
const WARM_UP: Duration = Duration::from_millis(300);
/// The share of the own client's confirmed rate that the relay should reach.
const AIM: f64 = 0.7;

#[derive(Clone, Copy, Debug)]
enum BrokerKind {
    Nats,
    RabbitMq,
    Redis,
    Http,
}

/// A broker without messages.
struct Broker {
    name: &'static str,
    processes: ProcessGroup,
    sink: Arc<dyn Sink>,
    client: Arc<dyn BrokerClient>,
    _server: Box<dyn Any>,
}

/// The broker's own client; its operation is one confirmed message.
#[async_trait]
trait BrokerClient: BenchOperation {
    /// Removes all messages.
    async fn clear(&self) -> anyhow::Result<()> {
        Ok(())
    }
}

pub(super) async fn compare(run: &RunArgs, rows: usize) -> anyhow::Result<()> {
    say(format_args!(
        "## Brokers\n\n{rows} rows of about 200 bytes, a key each, drained from the store into the \
         broker by one relay with its usual settings; beside it the broker's own client, which \
         sends and waits for the confirmation, with as many on their way as the relay may have. All \
         of it on the same cores.\n"
    ))?;
    // PostgreSQL has outboxes in practice; memory shows the relay without a store's cost.
    let engines = run.engines().filter(|e| matches!(e, Engine::Memory | Engine::Postgres));
    let stores = StoreServer::start_all(engines)?;
    let mut table = MarkdownTable::default();
    for kind in [BrokerKind::Nats, BrokerKind::RabbitMq, BrokerKind::Redis, BrokerKind::Http] {
        // One at a time: RabbitMQ alone keeps a core warm.
        let broker = Broker::start(kind).await.with_context(|| format!("{kind:?}"))?;
        let runs = in_rounds(ROUNDS, 1 + stores.len(), async |case, round| match case {
            0 => broker.measure_client(run.seconds / ROUNDS).await,
            _ => broker.measure_relay(&stores[case - 1], rows, round).await,
        });
        let runs = runs.await.context(broker.name)?;
        let (own, relays) = runs.split_first().context("nothing was measured")?;
        for (store, relay) in stores.iter().zip(relays) {
            broker.add_row(&mut table, store, own, relay);
        }
    }
    say(table)?;
    Ok(())
}

impl Broker {
    async fn measure_client(&self, time: Duration) -> anyhow::Result<Measurement> {
        let plan = BenchPlan::new(self.sink.max_in_flight(), BenchSpan::Time(time))
            .warm_up(WARM_UP)
            .servers([self.processes.clone()]);
        let measured = measure(self.client.clone(), &plan).await?;
        self.client.clear().await?;
        Ok(measured)
    }

    async fn measure_relay(
        &self,
        server: &StoreServer,
        rows: usize,
        round: u32,
    ) -> anyhow::Result<Measurement> {
        let store = server.store(&format!("{}_{round}", self.name.to_lowercase())).await?;
        fill(&*store, rows, OrderingKeys::Own).await?;
        let servers = [self.processes.clone(), server.processes()];
        let measured = drain(store, self.sink.clone(), rows, &servers).await?;
        self.client.clear().await?;
        Ok(measured)
    }

    fn add_row(
        &self,
        table: &mut MarkdownTable,
        store: &StoreServer,
        own: &Measurement,
        relay: &Measurement,
    ) {
        let ratio = relay.per_second() / own.per_second();
        table.row([
            ("broker", self.name.to_owned()),
            ("on their way", self.sink.max_in_flight().to_string()),
            ("own client, confirmed/s", cell::rate(own.per_second())),
            ("from", store.engine().name().to_owned()),
            ("relay rows/s", cell::rate(relay.per_second())),
            ("ratio", format!("{ratio:.2}")),
            ("aim 0.70", if ratio >= AIM { "met" } else { "NOT met" }.to_owned()),
            ("relay CPU µs/row", cell::micros(Some(relay.client_cpu_each()))),
            ("broker CPU µs/row", cell::micros(relay.server_cpu_each(0))),
            ("store CPU µs/row", cell::micros(relay.server_cpu_each(1))),
            ("own client CPU µs", cell::micros(Some(own.client_cpu_each()))),
            ("own broker CPU µs", cell::micros(own.server_cpu_each(0))),
        ]);
    }
}
