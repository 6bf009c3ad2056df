//! The load, in a process of its own: one publisher, and subscribers that count.

mod deliveries;
mod publisher;
mod subscribers;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context;
use hapax_workload::ProcessGroup;
use tokio::time::sleep;

use super::report::{FanoutPhase, FanoutResult};
use super::server::FanoutServer;
use deliveries::DeliveryCounters;
pub(super) use deliveries::histogram;
use publisher::FanoutPublisher;
use subscribers::SubscriberGroup;

/// "As fast as it goes" keeps this many events ahead of the average client. More would measure how the
/// server treats clients that are far behind, for which nchan makes no promise.
const AHEAD: u64 = 32;
/// How long the last deliveries may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The interval at which the clients' progress is read.
const LOOK: Duration = Duration::from_millis(1);
/// The least number of events at the fixed rate.
const FEWEST: u64 = 10;

/// The arguments of the hidden `hapax-bench fanout-load`.
#[derive(clap::Args)]
pub(crate) struct FanoutLoadArgs {
    #[arg(long, value_enum)]
    kind: FanoutServer,
    #[arg(long)]
    address: SocketAddr,
    /// The process whose CPU time and memory are measured.
    #[arg(long)]
    server: u32,
    #[arg(long)]
    clients: usize,
    /// Events in a second, while they have a fixed rate.
    #[arg(long)]
    rate: f64,
    /// How long each phase is.
    #[arg(long)]
    phase: f64,
}

/// Measures, and prints the [`FanoutResult`] as a line of JSON.
pub(crate) async fn run(args: FanoutLoadArgs) -> anyhow::Result<()> {
    let server = ProcessGroup::new([args.server]);
    let counters = Arc::new(DeliveryCounters::new());
    let mut publisher = FanoutPublisher::connect(args.kind, args.address, &counters).await?;
    let request = args.kind.subscribe(args.address);
    warm_up(&args, &request, &mut publisher).await?;
    let before = server.resident_bytes();
    let subscribers =
        SubscriberGroup::connect(args.address, &request, args.clients, &counters).await?;
    let mut load = FanoutLoad { clients: args.clients as u64, server, counters, own: own() };
    // Send one more event, so that buffers have their final size.
    publisher.send().await?;
    load.wait_for_deliveries(&publisher).await?;
    let connected = load.server.resident_bytes().saturating_sub(before);
    let time = Duration::try_from_secs_f64(args.phase)?;
    let paced = load.paced(&mut publisher, args.rate, time).await?;
    let flat_out = load.flat_out(&mut publisher, time).await?;
    let peak = load.server.resident_bytes().saturating_sub(before);
    let closed = load.counters.closed.load(Relaxed);
    anyhow::ensure!(closed == 0, "{closed} streams ended in the middle");
    drop(subscribers);
    let outcome = FanoutResult { connected, peak, paced, flat_out };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}

/// Connects a few clients for one event, so that memory which the server allocates for its first clients
/// is not counted. Later clients begin with that event.
async fn warm_up(
    args: &FanoutLoadArgs,
    request: &str,
    publisher: &mut FanoutPublisher,
) -> anyhow::Result<()> {
    const CLIENTS: usize = 64;
    let counters = Arc::new(DeliveryCounters::new());
    let subscribers = SubscriberGroup::connect(args.address, request, CLIENTS, &counters).await?;
    publisher.send().await?;
    let (server, own) = (ProcessGroup::default(), ProcessGroup::default());
    FanoutLoad { clients: CLIENTS as u64, server, own, counters }
        .wait_for_deliveries(publisher)
        .await?;
    drop(subscribers);
    Ok(())
}

fn own() -> ProcessGroup {
    ProcessGroup::new([std::process::id()])
}

struct FanoutLoad {
    clients: u64,
    server: ProcessGroup,
    own: ProcessGroup,
    counters: Arc<DeliveryCounters>,
}

impl FanoutLoad {
    /// Events at a fixed rate.
    async fn paced(
        &mut self,
        publisher: &mut FanoutPublisher,
        rate: f64,
        time: Duration,
    ) -> anyhow::Result<FanoutPhase> {
        let start = PhaseStart::of(self, publisher);
        let events = ((rate * time.as_secs_f64()) as u64).max(FEWEST);
        for event in 0..events {
            let due = start.at + Duration::from_secs_f64(event as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
            publisher.send().await?;
            publisher.wait_until_open(AHEAD).await?;
        }
        self.end(start, publisher).await
    }

    /// Events as fast as the average client gets them.
    async fn flat_out(
        &mut self,
        publisher: &mut FanoutPublisher,
        time: Duration,
    ) -> anyhow::Result<FanoutPhase> {
        let start = PhaseStart::of(self, publisher);
        while start.at.elapsed() < time {
            let wait_for_deliveries = self.counters.delivered.load(Relaxed) / self.clients;
            if publisher.sent.saturating_sub(wait_for_deliveries) >= AHEAD {
                sleep(LOOK).await;
                continue;
            }
            publisher.send().await?;
            publisher.wait_until_open(AHEAD).await?;
        }
        self.end(start, publisher).await
    }

    async fn end(
        &self,
        start: PhaseStart,
        publisher: &mut FanoutPublisher,
    ) -> anyhow::Result<FanoutPhase> {
        publisher.wait_until_open(0).await?;
        self.wait_for_deliveries(publisher).await?;
        let counters = &self.counters;
        let since = |now: &AtomicU64, then: u64| now.load(Relaxed) - then;
        let latencies = counters.take_latencies();
        let latencies = latencies.iter_recorded();
        Ok(FanoutPhase {
            events: publisher.sent - start.sent,
            deliveries: since(&counters.delivered, start.delivered),
            bytes: since(&counters.bytes, start.bytes),
            elapsed: start.at.elapsed(),
            server_cpu: self.server.cpu_time().saturating_sub(start.server_cpu),
            load_cpu: self.own.cpu_time().saturating_sub(start.load_cpu),
            lost: since(&counters.gaps, start.gaps),
            duplicates: since(&counters.duplicates, start.duplicates),
            latencies: latencies
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
        })
    }

    /// Waits until every event is delivered to every client, or known to be lost.
    async fn wait_for_deliveries(&self, publisher: &FanoutPublisher) -> anyhow::Result<()> {
        let end = Instant::now() + TIMEOUT;
        loop {
            let counters = &self.counters;
            let arrived = counters.delivered.load(Relaxed) - counters.duplicates.load(Relaxed);
            let accounted = arrived + counters.gaps.load(Relaxed);
            let expected = publisher.sent * self.clients;
            if accounted >= expected {
                return Ok(());
            }
            let missing = expected - accounted;
            let said = || format!("{missing} of {expected} deliveries do not come");
            (Instant::now() < end).then_some(()).with_context(said)?;
            sleep(LOOK).await;
        }
    }
}

/// The counters at the beginning of a phase.
struct PhaseStart {
    at: Instant,
    sent: u64,
    delivered: u64,
    bytes: u64,
    gaps: u64,
    duplicates: u64,
    server_cpu: Duration,
    load_cpu: Duration,
}

impl PhaseStart {
    fn of(load: &FanoutLoad, publisher: &FanoutPublisher) -> Self {
        let counters = &load.counters;
        counters.take_latencies();
        Self {
            sent: publisher.sent,
            delivered: counters.delivered.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            gaps: counters.gaps.load(Relaxed),
            duplicates: counters.duplicates.load(Relaxed),
            server_cpu: load.server.cpu_time(),
            load_cpu: load.own.cpu_time(),
            at: Instant::now(),
        }
    }
}
