//! The load, in a process of its own: one publisher, and a crowd of clients that count.

mod crowd;
mod mark;
mod publisher;
mod tally;

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context;
use hapax_bench::Processes;
use tokio::time::sleep;

use super::outcome::{Outcome, Phase};
use super::subject::Kind;
use crowd::Crowd;
use publisher::Publisher;
use tally::Tally;
pub(super) use tally::histogram;

/// As fast as it goes means: so many events ahead of the average client. More would measure how the
/// server treats clients that are far behind, and nobody promises anything about that on nchan.
const AHEAD: u64 = 32;
/// How long the last deliveries may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two looks at how far the clients are.
const LOOK: Duration = Duration::from_millis(1);
/// At the fixed rate, there are never fewer events than this.
const FEWEST: u64 = 10;

/// The arguments of the hidden `hapax-bench fanout-load`.
#[derive(clap::Args)]
pub(crate) struct LoadArgs {
    #[arg(long, value_enum)]
    kind: Kind,
    #[arg(long)]
    address: SocketAddr,
    /// Whose CPU time and memory is measured.
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

/// Measures, and says the [`Outcome`] as a line of JSON.
pub(crate) async fn run(args: LoadArgs) -> anyhow::Result<()> {
    let server = Processes::new([args.server]);
    let tally = Arc::new(Tally::new());
    let mut publisher = Publisher::connect(args.kind, args.address, &tally).await?;
    let request = args.kind.subscribe(args.address);
    warm_up(&args, &request, &mut publisher).await?;
    let before = server.resident_bytes();
    let crowd = Crowd::gather(args.address, &request, args.clients, &tally).await?;
    let mut load = Load { clients: args.clients as u64, server, tally, own: own() };
    // One more, so that everything has its size.
    publisher.send().await?;
    load.landed(&publisher).await?;
    let connected = load.server.resident_bytes().saturating_sub(before);
    let time = Duration::try_from_secs_f64(args.phase)?;
    let paced = load.paced(&mut publisher, args.rate, time).await?;
    let flat_out = load.flat_out(&mut publisher, time).await?;
    let peak = load.server.resident_bytes().saturating_sub(before);
    let closed = load.tally.closed.load(Relaxed);
    anyhow::ensure!(closed == 0, "{closed} streams ended in the middle");
    drop(crowd);
    let outcome = Outcome { connected, peak, paced, flat_out };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&outcome)?)?;
    Ok(())
}

/// A few clients come, get an event and go, so that what the server needs for the first of them does
/// not count as theirs. All that come later begin with that event.
async fn warm_up(args: &LoadArgs, request: &str, publisher: &mut Publisher) -> anyhow::Result<()> {
    const CLIENTS: usize = 64;
    let tally = Arc::new(Tally::new());
    let crowd = Crowd::gather(args.address, request, CLIENTS, &tally).await?;
    publisher.send().await?;
    let (server, own) = (Processes::default(), Processes::default());
    Load { clients: CLIENTS as u64, server, own, tally }.landed(publisher).await?;
    drop(crowd);
    Ok(())
}

fn own() -> Processes {
    Processes::new([std::process::id()])
}

struct Load {
    clients: u64,
    server: Processes,
    own: Processes,
    tally: Arc<Tally>,
}

impl Load {
    /// Events at a fixed rate.
    async fn paced(
        &mut self,
        publisher: &mut Publisher,
        rate: f64,
        time: Duration,
    ) -> anyhow::Result<Phase> {
        let start = Start::of(self, publisher);
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
        publisher: &mut Publisher,
        time: Duration,
    ) -> anyhow::Result<Phase> {
        let start = Start::of(self, publisher);
        while start.at.elapsed() < time {
            let landed = self.tally.delivered.load(Relaxed) / self.clients;
            if publisher.sent.saturating_sub(landed) >= AHEAD {
                sleep(LOOK).await;
                continue;
            }
            publisher.send().await?;
            publisher.wait_until_open(AHEAD).await?;
        }
        self.end(start, publisher).await
    }

    async fn end(&self, start: Start, publisher: &mut Publisher) -> anyhow::Result<Phase> {
        publisher.wait_until_open(0).await?;
        self.landed(publisher).await?;
        let tally = &self.tally;
        let since = |now: &AtomicU64, then: u64| now.load(Relaxed) - then;
        let latencies = tally.take_latencies();
        let latencies = latencies.iter_recorded();
        Ok(Phase {
            events: publisher.sent - start.sent,
            deliveries: since(&tally.delivered, start.delivered),
            bytes: since(&tally.bytes, start.bytes),
            elapsed: start.at.elapsed(),
            server_cpu: self.server.cpu_time().saturating_sub(start.server_cpu),
            load_cpu: self.own.cpu_time().saturating_sub(start.load_cpu),
            lost: since(&tally.gaps, start.gaps),
            duplicates: since(&tally.duplicates, start.duplicates),
            latencies: latencies
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect(),
        })
    }

    /// Waits until every client has every event. Each that a client left out is lost, and will not
    /// come.
    async fn landed(&self, publisher: &Publisher) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let tally = &self.tally;
            let arrived = tally.delivered.load(Relaxed) - tally.duplicates.load(Relaxed);
            let accounted = arrived + tally.gaps.load(Relaxed);
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

/// How things stood when a phase began.
struct Start {
    at: Instant,
    sent: u64,
    delivered: u64,
    bytes: u64,
    gaps: u64,
    duplicates: u64,
    server_cpu: Duration,
    load_cpu: Duration,
}

impl Start {
    fn of(load: &Load, publisher: &Publisher) -> Self {
        let tally = &load.tally;
        tally.take_latencies();
        Self {
            sent: publisher.sent,
            delivered: tally.delivered.load(Relaxed),
            bytes: tally.bytes.load(Relaxed),
            gaps: tally.gaps.load(Relaxed),
            duplicates: tally.duplicates.load(Relaxed),
            server_cpu: load.server.cpu_time(),
            load_cpu: load.own.cpu_time(),
            at: Instant::now(),
        }
    }
}
