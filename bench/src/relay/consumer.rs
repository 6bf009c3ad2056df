//! A consumer of NATS with the inbox, beside one without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use hapax_bench::{Operation, Plan, Processes, Span, Table, cell, measure};
use hapax_core::inbox::Inbox;
use hapax_relay::consumer::{
    BrokerConsumer, ConsumerConfig, InboundMessage, MessageHandler, MessageHandlerError, NatsSource,
};
use hapax_testkit::Nats;
use tokio::sync::Notify;

use super::brokers::nats::{Publish, stream};
use super::fill::TOPIC;
use super::run::{Run, add};
use super::transactions::Extra;
use super::transactions::postgres::{Postgres, Transactions};
use crate::arena::Engine;
use crate::place::Place;
use crate::{progress, say};

/// How many messages are handled at once.
const AT_ONCE: usize = 64;
/// There and back again.
const ROUNDS: usize = 2;
const PATIENCE: Duration = Duration::from_secs(120);

/// One consumer.
struct Subject {
    name: String,
    /// What it is compared with.
    beside: Option<usize>,
    inbox: Option<Inbox>,
    /// The transactions of the handler, if it has any.
    invoices: Option<(Arc<Postgres>, Extra)>,
    servers: Processes,
}

pub(super) async fn compare(engines: &[Engine], messages: usize) -> anyhow::Result<()> {
    let nats = Nats::start();
    let (context, _) = stream(&nats.url()).await?;
    let count = Span::Count(messages as u64);
    measure(Arc::new(Publish(context)), &Plan::new(256, count)).await?;
    let places = engines.iter().map(|engine| Ok((*engine, Place::start(*engine)?)));
    let places: Vec<(Engine, Place)> = places.collect::<anyhow::Result<_>>()?;
    let subjects = subjects(&places).await?;
    let mut runs: Vec<Option<Run>> = subjects.iter().map(|_| None).collect();
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            // Each reads the whole stream, under a name of its own.
            let source = NatsSource::new(&nats.url(), TOPIC, &format!("reader-{at}-{round}"))?;
            let run = subjects[at].consume(source, messages, &format!("{at}-{round}")).await?;
            add(&mut runs[at], run);
            progress(".");
        }
    }
    progress("\n");
    say(&format!(
        "## Consumers\n\n{messages} messages of a JetStream stream, {AT_ONCE} handled at once, \
         acknowledged after the handler.\n\n{}",
        table(&subjects, &runs)
    ))?;
    Ok(())
}

/// A handler that does nothing, without and with an inbox on each store; one that inserts an
/// invoice, without and with the inbox in its transaction.
async fn subjects(places: &[(Engine, Place)]) -> anyhow::Result<Vec<Subject>> {
    let mut subjects = vec![Subject {
        name: "does nothing, no inbox".into(),
        beside: None,
        inbox: None,
        invoices: None,
        servers: Processes::default(),
    }];
    for (engine, place) in places {
        let inbox = Some(Inbox::new(place.store("inbox").await?));
        let name = format!("does nothing, inbox on {}", engine.name());
        let servers = place.processes();
        subjects.push(Subject { name, beside: Some(0), inbox, invoices: None, servers });
    }
    for (_, place) in places {
        let Place::Postgres(_) = place else { continue };
        let url = place.url("invoices");
        drop(place.store_at(&url).await?);
        let invoices = Arc::new(Postgres::connect(&url).await?);
        let alone = subjects.len();
        for (extra, beside) in [(Extra::Nothing, None), (Extra::Inbox, Some(alone))] {
            subjects.push(Subject {
                name: format!("inserts an invoice on PostgreSQL, {}", extra.name()),
                beside,
                inbox: None,
                invoices: Some((invoices.clone(), extra)),
                servers: place.processes(),
            });
        }
    }
    Ok(subjects)
}

impl Subject {
    async fn consume(
        &self,
        source: NatsSource,
        messages: usize,
        name: &str,
    ) -> anyhow::Result<Run> {
        let done = Arc::new(Done { left: AtomicUsize::new(messages), all: Notify::new() });
        let transactions =
            |(invoices, extra): &(Arc<Postgres>, Extra)| invoices.transactions(*extra);
        let effect = self.invoices.as_ref().map(transactions);
        let handler = Counting { done: done.clone(), next: AtomicU64::new(0), effect };
        let config = ConsumerConfig::new().max_concurrent(AT_ONCE);
        // Another name is another inbox.
        let mut consumer = BrokerConsumer::new(name, source, handler).config(config);
        if let Some(inbox) = &self.inbox {
            consumer = consumer.inbox(inbox.clone());
        }
        let work = async {
            let finished =
                async { drop(tokio::time::timeout(PATIENCE, done.all.notified()).await) };
            consumer.run(finished).await;
            let left = done.left.load(Relaxed);
            anyhow::ensure!(left == 0, "{}: {left} messages were not handled", self.name);
            Ok(())
        };
        Run::of(messages, std::slice::from_ref(&self.servers), work).await
    }
}

struct Done {
    left: AtomicUsize,
    all: Notify,
}

struct Counting {
    done: Arc<Done>,
    next: AtomicU64,
    effect: Option<Transactions>,
}

#[async_trait]
impl MessageHandler for Counting {
    async fn handle(&self, _message: &InboundMessage) -> Result<(), MessageHandlerError> {
        if let Some(effect) = &self.effect {
            let done = effect.run(0, self.next.fetch_add(1, Relaxed)).await;
            done.map_err(|error| MessageHandlerError::Transient(error.to_string()))?;
        }
        if self.done.left.fetch_sub(1, Relaxed) == 1 {
            self.done.all.notify_one();
        }
        Ok(())
    }
}

fn table(subjects: &[Subject], runs: &[Option<Run>]) -> Table {
    let mut table = Table::new([
        "handler",
        "messages/s",
        "over the one without",
        "consumer CPU µs",
        "store CPU µs",
    ]);
    for (subject, run) in subjects.iter().zip(runs) {
        let Some(run) = run else { continue };
        let beside = subject.beside.and_then(|at| runs[at].as_ref());
        let ratio = beside.map(|beside| format!("{:.2}", run.per_second() / beside.per_second()));
        let store = run.server_cpu_each(0).filter(|_| !subject.servers.is_empty());
        table.row([
            subject.name.clone(),
            cell::rate(run.per_second()),
            ratio.unwrap_or_else(|| "—".into()),
            cell::micros(Some(run.client_cpu_each())),
            cell::micros(store),
        ]);
    }
    table
}
