//! A relay into each broker, beside what the broker's own client gets confirmed.

mod amqp;
mod http;
pub(super) mod nats;
mod redis;

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
use super::rows::{RelayRun, add};
use crate::store_server::{Engine, StoreServer};
use crate::{progress, say};

/// The broker's own client, then the relay from each store; the second round in reverse.
const ROUNDS: u32 = 2;
const WARM_UP: Duration = Duration::from_millis(300);
/// The share of the own client's confirmed rate that the relay should reach.
const AIM: f64 = 0.7;

/// An empty broker.
#[async_trait]
trait Broker: Send + Sync {
    fn name(&self) -> &'static str;

    fn processes(&self) -> ProcessGroup;

    /// The relay's sink for this broker.
    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>>;

    /// An operation of the broker's own client: one confirmed message.
    async fn client(&self) -> anyhow::Result<Arc<dyn BenchOperation>>;

    /// Removes all messages.
    async fn clear(&self) -> anyhow::Result<()>;
}

pub(super) async fn compare(
    engines: &[Engine],
    rows: usize,
    seconds: Duration,
) -> anyhow::Result<()> {
    say(&format!(
        "## Brokers\n\n{rows} rows of about 200 bytes, a key each, drained from the store into the \
         broker by one relay with its usual settings; beside it the broker's own client, which \
         sends and waits for the confirmation, with as many on their way as the relay may have. All \
         of it on the same cores.\n"
    ))?;
    // PostgreSQL has outboxes in practice; memory shows the relay without a store's cost.
    let stores = [Engine::Memory, Engine::Postgres];
    let stores = stores.into_iter().filter(|engine| engines.contains(engine));
    let stores = stores.map(|engine| Ok((engine, StoreServer::start(engine)?)));
    let stores: Vec<(Engine, StoreServer)> = stores.collect::<anyhow::Result<_>>()?;
    let mut table = table();
    type Start = fn() -> anyhow::Result<Box<dyn Broker>>;
    for start in [nats::start as Start, amqp::start, redis::start, http::start] {
        // One at a time: RabbitMQ alone keeps a core warm.
        let broker = start()?;
        let stage = BrokerComparison { broker: &*broker, rows, time: seconds / ROUNDS };
        let name = broker.name();
        stage.take_turns(&stores, &mut table).await.with_context(|| name)?;
    }
    progress("\n");
    say(&table.to_string())?;
    Ok(())
}

fn table() -> MarkdownTable {
    MarkdownTable::new([
        "broker",
        "on their way",
        "own client, confirmed/s",
        "from",
        "relay rows/s",
        "ratio",
        "aim 0.70",
        "relay CPU µs/row",
        "broker CPU µs/row",
        "store CPU µs/row",
        "own client CPU µs",
        "own broker CPU µs",
    ])
}

struct BrokerComparison<'a> {
    broker: &'a dyn Broker,
    rows: usize,
    time: Duration,
}

impl BrokerComparison<'_> {
    async fn take_turns(
        &self,
        stores: &[(Engine, StoreServer)],
        table: &mut MarkdownTable,
    ) -> anyhow::Result<()> {
        let mut own: Option<Measurement> = None;
        let mut runs: Vec<Option<RelayRun>> = stores.iter().map(|_| None).collect();
        for round in 0..ROUNDS {
            let mut order: Vec<usize> = (0..stores.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            } else {
                own = Some(self.own(own).await?);
            }
            for at in order {
                add(&mut runs[at], self.relay(&stores[at].1, round).await?);
                progress(".");
            }
            if round % 2 == 1 {
                own = Some(self.own(own).await?);
            }
        }
        let own = own.context("nothing was measured")?;
        for ((engine, server), run) in stores.iter().zip(runs) {
            let Some(run) = run else { continue };
            table.row(self.row(*engine, server, &own, &run)?);
        }
        Ok(())
    }

    async fn own(&self, before: Option<Measurement>) -> anyhow::Result<Measurement> {
        let at_once = self.broker.sink()?.max_in_flight();
        let plan = BenchPlan::new(at_once, BenchSpan::Time(self.time))
            .warm_up(WARM_UP)
            .servers([self.broker.processes()]);
        let measured = measure(self.broker.client().await?, &plan).await?;
        self.broker.clear().await?;
        progress(".");
        Ok(match before {
            Some(before) => before.and(&measured),
            None => measured,
        })
    }

    async fn relay(&self, server: &StoreServer, round: u32) -> anyhow::Result<RelayRun> {
        let store = server.store(&format!("{}_{round}", self.broker.name().to_lowercase())).await?;
        fill(&*store, self.rows, OrderingKeys::Own).await?;
        let servers = [self.broker.processes(), server.processes()];
        let run = drain(store, self.broker.sink()?, self.rows, &servers).await?;
        self.broker.clear().await?;
        Ok(run)
    }

    fn row(
        &self,
        engine: Engine,
        server: &StoreServer,
        own: &Measurement,
        run: &RelayRun,
    ) -> anyhow::Result<Vec<String>> {
        let ratio = run.per_second() / own.per_second();
        let store = run.server_cpu_each(1).filter(|_| !server.processes().is_empty());
        Ok(vec![
            self.broker.name().to_owned(),
            self.broker.sink()?.max_in_flight().to_string(),
            cell::rate(own.per_second()),
            engine.name().to_owned(),
            cell::rate(run.per_second()),
            format!("{ratio:.2}"),
            if ratio >= AIM { "met" } else { "NOT met" }.to_owned(),
            cell::micros(Some(run.client_cpu_each())),
            cell::micros(run.server_cpu_each(0)),
            cell::micros(store),
            cell::micros(Some(own.client_cpu_each())),
            cell::micros(own.server_cpu_each(0)),
        ])
    }
}
