//! A consumer of NATS with the inbox, beside one without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::inbox::Inbox;
use hapax_relay::consumer::{
    BrokerConsumer, ConsumerConfig, InboundMessage, MessageHandler, MessageHandlerError, NatsSource,
};
use hapax_testkit::Nats;
use hapax_workload::{
    BenchOperation, BenchPlan, BenchSpan, MarkdownTable, ProcessGroup, cell, measure,
};
use tokio::sync::Notify;

use super::brokers::nats::{NatsPublish, stream};
use super::rows::TOPIC;
use super::rows::{RelayRun, add};
use super::transactions::HapaxRow;
use super::transactions::postgres::{PostgresOrders, PostgresTransactions};
use crate::store_server::{Engine, StoreServer};
use crate::{progress, say};

/// How many messages are handled at once.
const AT_ONCE: usize = 64;
/// The second round runs in reverse order.
const ROUNDS: usize = 2;
const TIMEOUT: Duration = Duration::from_secs(120);

/// One consumer under test.
struct ConsumerCase {
    name: String,
    /// The index of the case that this one is compared with.
    beside: Option<usize>,
    inbox: Option<Inbox>,
    /// The transactions of the handler, if it has any.
    invoices: Option<(Arc<PostgresOrders>, HapaxRow)>,
    servers: ProcessGroup,
}

pub(super) async fn compare(engines: &[Engine], messages: usize) -> anyhow::Result<()> {
    let nats = Nats::start();
    let (context, _) = stream(&nats.url()).await?;
    let count = BenchSpan::Count(messages as u64);
    measure(Arc::new(NatsPublish(context)), &BenchPlan::new(256, count)).await?;
    let stores = engines.iter().map(|engine| Ok((*engine, StoreServer::start(*engine)?)));
    let stores: Vec<(Engine, StoreServer)> = stores.collect::<anyhow::Result<_>>()?;
    let subjects = subjects(&stores).await?;
    let mut runs: Vec<Option<RelayRun>> = subjects.iter().map(|_| None).collect();
    for round in 0..ROUNDS {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for at in order {
            // Each case reads the whole stream under its own durable name.
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
async fn subjects(stores: &[(Engine, StoreServer)]) -> anyhow::Result<Vec<ConsumerCase>> {
    let mut subjects = vec![ConsumerCase {
        name: "does nothing, no inbox".into(),
        beside: None,
        inbox: None,
        invoices: None,
        servers: ProcessGroup::default(),
    }];
    for (engine, server) in stores {
        let inbox = Some(Inbox::new(server.store("inbox").await?));
        let name = format!("does nothing, inbox on {}", engine.name());
        let servers = server.processes();
        subjects.push(ConsumerCase { name, beside: Some(0), inbox, invoices: None, servers });
    }
    for (_, server) in stores {
        let StoreServer::Postgres(_) = server else { continue };
        let url = server.url("invoices");
        drop(server.store_at(&url).await?);
        let invoices = Arc::new(PostgresOrders::connect(&url).await?);
        let alone = subjects.len();
        for (row, beside) in [(HapaxRow::Nothing, None), (HapaxRow::Inbox, Some(alone))] {
            subjects.push(ConsumerCase {
                name: format!("inserts an invoice on PostgreSQL, {}", row.name()),
                beside,
                inbox: None,
                invoices: Some((invoices.clone(), row)),
                servers: server.processes(),
            });
        }
    }
    Ok(subjects)
}

impl ConsumerCase {
    async fn consume(
        &self,
        source: NatsSource,
        messages: usize,
        name: &str,
    ) -> anyhow::Result<RelayRun> {
        let done = Arc::new(Done { left: AtomicUsize::new(messages), all: Notify::new() });
        let transactions =
            |(invoices, row): &(Arc<PostgresOrders>, HapaxRow)| invoices.transactions(*row);
        let effect = self.invoices.as_ref().map(transactions);
        let handler = Counting { done: done.clone(), next: AtomicU64::new(0), effect };
        let config = ConsumerConfig::new().max_concurrent(AT_ONCE);
        // Each name has its own inbox entries.
        let mut consumer = BrokerConsumer::new(name, source, handler).config(config);
        if let Some(inbox) = &self.inbox {
            consumer = consumer.inbox(inbox.clone());
        }
        let work = async {
            let finished = async { drop(tokio::time::timeout(TIMEOUT, done.all.notified()).await) };
            consumer.run(finished).await;
            let left = done.left.load(Relaxed);
            anyhow::ensure!(left == 0, "{}: {left} messages were not handled", self.name);
            Ok(())
        };
        RelayRun::of(messages, std::slice::from_ref(&self.servers), work).await
    }
}

struct Done {
    left: AtomicUsize,
    all: Notify,
}

struct Counting {
    done: Arc<Done>,
    next: AtomicU64,
    effect: Option<PostgresTransactions>,
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

fn table(subjects: &[ConsumerCase], runs: &[Option<RelayRun>]) -> MarkdownTable {
    let mut table = MarkdownTable::new([
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
