//! A relay into each broker, beside what the broker's own client gets confirmed.

mod amqp;
mod http;
pub(super) mod nats;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use hapax_bench::{Measured, Operation, Plan, Processes, Span, Table, cell, measure};
use hapax_relay::Sink;

use super::drain::drain;
use super::fill::{Keys, fill};
use super::run::{Run, add};
use crate::arena::Engine;
use crate::place::Place;
use crate::{progress, say};

/// The broker's own client, then the relay from each store; and all the way back.
const ROUNDS: u32 = 2;
const WARM_UP: Duration = Duration::from_millis(300);
/// Of what the broker's own client gets confirmed.
const AIM: f64 = 0.7;

/// A broker with nothing in it.
#[async_trait]
trait Broker: Send + Sync {
    fn name(&self) -> &'static str;

    fn processes(&self) -> Processes;

    /// hapax's way to it.
    fn sink(&self) -> anyhow::Result<Arc<dyn Sink>>;

    /// Its own client: one message, confirmed.
    async fn client(&self) -> anyhow::Result<Arc<dyn Operation>>;

    /// Takes out what is in it.
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
    // Where outboxes are, and what a store cannot make slower.
    let stores = [Engine::Memory, Engine::Postgres];
    let stores = stores.into_iter().filter(|engine| engines.contains(engine));
    let places = stores.map(|engine| Ok((engine, Place::start(engine)?)));
    let places: Vec<(Engine, Place)> = places.collect::<anyhow::Result<_>>()?;
    let mut table = table();
    type Start = fn() -> anyhow::Result<Box<dyn Broker>>;
    for start in [nats::start as Start, amqp::start, redis::start, http::start] {
        // One at a time: RabbitMQ alone keeps a core warm.
        let broker = start()?;
        let stage = Stage { broker: &*broker, rows, time: seconds / ROUNDS };
        let name = broker.name();
        stage.take_turns(&places, &mut table).await.with_context(|| name)?;
    }
    progress("\n");
    say(&table.to_string())?;
    Ok(())
}

fn table() -> Table {
    Table::new([
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

struct Stage<'a> {
    broker: &'a dyn Broker,
    rows: usize,
    time: Duration,
}

impl Stage<'_> {
    async fn take_turns(
        &self,
        places: &[(Engine, Place)],
        table: &mut Table,
    ) -> anyhow::Result<()> {
        let mut own: Option<Measured> = None;
        let mut runs: Vec<Option<Run>> = places.iter().map(|_| None).collect();
        for round in 0..ROUNDS {
            let mut order: Vec<usize> = (0..places.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            } else {
                own = Some(self.own(own).await?);
            }
            for at in order {
                add(&mut runs[at], self.relay(&places[at].1, round).await?);
                progress(".");
            }
            if round % 2 == 1 {
                own = Some(self.own(own).await?);
            }
        }
        let own = own.context("nothing was measured")?;
        for ((engine, place), run) in places.iter().zip(runs) {
            let Some(run) = run else { continue };
            table.row(self.row(*engine, place, &own, &run)?);
        }
        Ok(())
    }

    async fn own(&self, before: Option<Measured>) -> anyhow::Result<Measured> {
        let at_once = self.broker.sink()?.max_in_flight();
        let plan = Plan::new(at_once, Span::Time(self.time))
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

    async fn relay(&self, place: &Place, round: u32) -> anyhow::Result<Run> {
        let store = place.store(&format!("{}_{round}", self.broker.name().to_lowercase())).await?;
        fill(&*store, self.rows, Keys::Own).await?;
        let servers = [self.broker.processes(), place.processes()];
        let run = drain(store, self.broker.sink()?, self.rows, &servers).await?;
        self.broker.clear().await?;
        Ok(run)
    }

    fn row(
        &self,
        engine: Engine,
        place: &Place,
        own: &Measured,
        run: &Run,
    ) -> anyhow::Result<Vec<String>> {
        let ratio = run.per_second() / own.per_second();
        let store = run.server_cpu_each(1).filter(|_| !place.processes().is_empty());
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
