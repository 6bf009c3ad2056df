//! The load, in a process of its own: one publisher, and subscribers that count.

mod deliveries;
mod publisher;
mod subscribers;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hapax_workload::{ProcessGroup, own_cpu_time};
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
    /// How long each phase is, in seconds.
    #[arg(long, value_parser = crate::parse_seconds)]
    phase: Duration,
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
    let load = FanoutLoad { clients: args.clients as u64, server, counters };
    // Send one more event, so that buffers have their final size.
    publisher.send().await?;
    load.wait_for_deliveries(&publisher).await?;
    let connected = load.server.resident_bytes().saturating_sub(before);
    let paced = load.paced(&mut publisher, args.rate, args.phase).await?;
    let flat_out = load.flat_out(&mut publisher, args.phase).await?;
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
    let load = FanoutLoad { clients: CLIENTS as u64, server: ProcessGroup::default(), counters };
    load.wait_for_deliveries(publisher).await?;
    drop(subscribers);
    Ok(())
}

struct FanoutLoad {
    clients: u64,
    server: ProcessGroup,
    counters: Arc<DeliveryCounters>,
}

impl FanoutLoad {
    /// Events at a fixed rate.
    async fn paced(
        &self,
        publisher: &mut FanoutPublisher,
        rate: f64,
        time: Duration,
    ) -> anyhow::Result<FanoutPhase> {
        let (start, began) = (self.totals(publisher), Instant::now());
        let events = ((rate * time.as_secs_f64()) as u64).max(FEWEST);
        for event in 0..events {
            let due = began + Duration::from_secs_f64(event as f64 / rate);
            tokio::time::sleep_until(due.into()).await;
            publisher.send().await?;
            publisher.wait_until_open(AHEAD).await?;
        }
        self.end(&start, publisher).await
    }

    /// Events as fast as the average client gets them.
    async fn flat_out(
        &self,
        publisher: &mut FanoutPublisher,
        time: Duration,
    ) -> anyhow::Result<FanoutPhase> {
        let (start, began) = (self.totals(publisher), Instant::now());
        while began.elapsed() < time {
            let delivered = self.counters.delivered.load(Relaxed) / self.clients;
            if publisher.sent.saturating_sub(delivered) >= AHEAD {
                sleep(LOOK).await;
                continue;
            }
            publisher.send().await?;
            publisher.wait_until_open(AHEAD).await?;
        }
        self.end(&start, publisher).await
    }

    async fn end(
        &self,
        start: &FanoutPhase,
        publisher: &mut FanoutPublisher,
    ) -> anyhow::Result<FanoutPhase> {
        publisher.wait_until_open(0).await?;
        self.wait_for_deliveries(publisher).await?;
        Ok(self.totals(publisher).since(start))
    }

    /// The figures since the load began; the latencies are those since the last call.
    fn totals(&self, publisher: &FanoutPublisher) -> FanoutPhase {
        let counters = &self.counters;
        let latencies = counters.take_latencies();
        let latencies = latencies.iter_recorded();
        FanoutPhase {
            events: publisher.sent,
            deliveries: counters.delivered.load(Relaxed),
            bytes: counters.bytes.load(Relaxed),
            elapsed: counters.began.elapsed(),
            server_cpu: self.server.cpu_time(),
            load_cpu: own_cpu_time(),
            lost: counters.gaps.load(Relaxed),
            duplicates: counters.duplicates.load(Relaxed),
            latencies: latencies.map(|l| (l.value_iterated_to(), l.count_at_value())).collect(),
        }
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
            let in_time = Instant::now() < end;
            anyhow::ensure!(in_time, "{missing} of {expected} deliveries do not come");
            sleep(LOOK).await;
        }
    }
}
