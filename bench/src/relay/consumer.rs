//! A consumer of NATS with the inbox, beside one without.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::Context;
use async_trait::async_trait;
use hapax_core::inbox::Inbox;
use hapax_relay::consumer::{
    BrokerConsumer, ConsumerConfig, InboundMessage, MessageHandler, MessageHandlerError, NatsSource,
};
use hapax_testkit::Nats;
use hapax_workload::{
    BenchOperation, BenchPlan, BenchSpan, MarkdownTable, Measurement, ProcessGroup, cell, measure,
    measure_work,
};

use super::brokers::clients::NatsClient;
use super::rows::{Countdown, TOPIC};
use super::transactions::{HapaxRow, OrderDatabase, Transactions};
use crate::store_server::{Engine, StoreServer};
use crate::turns::in_rounds;
use crate::{RunArgs, say};

/// How many messages are handled at once.
const AT_ONCE: usize = 64;
const ROUNDS: u32 = 2;

/// One consumer under test.
struct ConsumerCase {
    name: String,
    /// The index of the case that this one is compared with.
    beside: Option<usize>,
    inbox: Option<Inbox>,
    /// The transactions of the handler, if it has any.
    invoices: Option<(Arc<dyn OrderDatabase>, HapaxRow)>,
    servers: ProcessGroup,
}

pub(super) async fn compare(run: &RunArgs, messages: usize) -> anyhow::Result<()> {
    let nats = Nats::start();
    let publish = BenchPlan::new(256, BenchSpan::Count(messages as u64));
    measure(Arc::new(NatsClient::connect(&nats.url()).await?), &publish).await?;
    let stores = StoreServer::start_all(run.engines())?;
    let cases = cases(&stores).await?;
    let runs = in_rounds(ROUNDS, cases.len(), async |case, round| {
        // Each case reads the whole stream under its own durable name.
        let source = NatsSource::new(&nats.url(), TOPIC, &format!("reader-{case}-{round}"))?;
        cases[case].consume(source, messages, &format!("{case}-{round}")).await
    });
    let runs = runs.await?;
    let mut table = MarkdownTable::default();
    for (case, run) in cases.iter().zip(&runs) {
        let ratio = |at: usize| format!("{:.2}", run.per_second() / runs[at].per_second());
        table.row([
            ("handler", case.name.clone()),
            ("messages/s", cell::rate(run.per_second())),
            ("over the one without", case.beside.map_or_else(|| "—".into(), ratio)),
            ("consumer CPU µs", cell::micros(Some(run.client_cpu_each()))),
            ("store CPU µs", cell::micros(run.server_cpu_each(0))),
        ]);
    }
    say(format_args!(
        "## Consumers\n\n{messages} messages of a JetStream stream, {AT_ONCE} handled at once, \
         acknowledged after the handler.\n\n{table}"
    ))?;
    Ok(())
}

/// A handler that does nothing, without and with an inbox on each store; one that inserts an
/// invoice, without and with the inbox in its transaction.
async fn cases(stores: &[StoreServer]) -> anyhow::Result<Vec<ConsumerCase>> {
    let mut cases = vec![ConsumerCase {
        name: "does nothing, no inbox".into(),
        beside: None,
        inbox: None,
        invoices: None,
        servers: ProcessGroup::default(),
    }];
    for server in stores {
        cases.push(ConsumerCase {
            name: format!("does nothing, inbox on {}", server.engine().name()),
            beside: Some(0),
            inbox: Some(Inbox::new(server.store("inbox").await?)),
            invoices: None,
            servers: server.processes(),
        });
    }
    for server in stores.iter().filter(|server| server.engine() == Engine::Postgres) {
        let invoices = <dyn OrderDatabase>::open(server, "invoices").await?;
        let alone = cases.len();
        for (row, beside) in [(HapaxRow::Nothing, None), (HapaxRow::Inbox, Some(alone))] {
            cases.push(ConsumerCase {
                name: format!("inserts an invoice on PostgreSQL, {}", row.name()),
                beside,
                inbox: None,
                invoices: Some((invoices.clone(), row)),
                servers: server.processes(),
            });
        }
    }
    Ok(cases)
}

impl ConsumerCase {
    async fn consume(
        &self,
        source: NatsSource,
        messages: usize,
        name: &str,
    ) -> anyhow::Result<Measurement> {
        let left = Arc::new(Countdown::new(messages));
        let effect = self.invoices.as_ref();
        let effect = effect.map(|(invoices, row)| Transactions::new(invoices, *row, 1));
        let handler = CountingHandler { left: left.clone(), next: AtomicU64::new(0), effect };
        let config = ConsumerConfig::new().max_concurrent(AT_ONCE);
        // Each name has its own inbox entries.
        let mut consumer = BrokerConsumer::new(name, source, handler).config(config);
        if let Some(inbox) = &self.inbox {
            consumer = consumer.inbox(inbox.clone());
        }
        let work = async {
            consumer.run(left.wait()).await;
            left.ensure_none_left().context(self.name.clone())
        };
        measure_work(messages as u64, std::slice::from_ref(&self.servers), work).await
    }
}

struct CountingHandler {
    left: Arc<Countdown>,
    next: AtomicU64,
    effect: Option<Transactions>,
}

#[async_trait]
impl MessageHandler for CountingHandler {
    async fn handle(&self, _message: &InboundMessage) -> Result<(), MessageHandlerError> {
        if let Some(effect) = &self.effect {
            let done = effect.run(0, self.next.fetch_add(1, Relaxed)).await;
            done.map_err(|error| MessageHandlerError::Transient(error.to_string()))?;
        }
        self.left.count_one();
        Ok(())
    }
}
