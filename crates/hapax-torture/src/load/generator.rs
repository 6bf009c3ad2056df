//! The clients that make the load, in a process of their own where there are many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use super::caller::{AcknowledgedWrite, CallEnd, CallKind, LoadCaller};
use super::{idle_streams, slow_clients};

/// How many connections ask again for what was acknowledged.
const ASKING_AGAIN: usize = 32;

/// What one generator does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct GeneratorPlan {
    pub(crate) load: GeneratedLoad,
    /// Distinguishes its keys from those of other generators.
    pub(crate) name: String,
    pub(crate) addresses: Vec<String>,
    /// One for each tenant that takes part.
    pub(crate) tokens: Vec<String>,
    pub(crate) connections: usize,
    /// How long the server keeps what is written, in milliseconds; then nothing is asked for again.
    pub(crate) retention: Option<u64>,
}

/// A kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum GeneratedLoad {
    /// Calls of the API, or requests through the proxy; arrivals for each second, or as many as are answered.
    Calls { proxied: bool, rate: Option<u64> },
    /// Clients that send byte by byte, or do not read.
    SlowClients,
    /// Event streams on which nothing happens.
    IdleStreams,
}

/// An order to a generator of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GeneratorOrder {
    Run,
    /// End the load.
    Stop,
    /// Ask again for everything that was acknowledged, and end.
    Verify,
}

/// What a generator tells, as often as it is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct GeneratorReport {
    /// Connections or streams that are open.
    pub(crate) open: u64,
    /// Calls that wanted to be made.
    pub(crate) offered: u64,
    pub(crate) served: u64,
    /// Answers that say that there is no room.
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) is_stopped: bool,
    pub(crate) acknowledged: u64,
    /// The first lines about lost answers, and their number.
    pub(crate) lost: Vec<String>,
    pub(crate) lost_count: u64,
    pub(crate) is_verified: bool,
}

/// The counts of a running generator.
#[derive(Default)]
pub(crate) struct GeneratorCounts {
    pub(crate) open: AtomicU64,
    pub(crate) offered: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl GeneratorCounts {
    fn count(&self, end: CallEnd) {
        let counter = match end {
            CallEnd::Served => &self.served,
            CallEnd::Refused => &self.refused,
            CallEnd::Failed => &self.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self) -> GeneratorReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        GeneratorReport {
            open: read(&self.open),
            offered: read(&self.offered),
            served: read(&self.served),
            refused: read(&self.refused),
            failed: read(&self.failed),
            ..GeneratorReport::default()
        }
    }
}

/// Makes the load until it is told to stop, then checks what was acknowledged when it is told to.
pub(crate) async fn generate(
    plan: GeneratorPlan,
    mut orders: watch::Receiver<GeneratorOrder>,
    report: impl Fn(GeneratorReport),
) {
    let counts = Arc::new(GeneratorCounts::default());
    let mut clients = JoinSet::new();
    let arrivals = Arc::new(Semaphore::new(0));
    for number in 0..plan.connections {
        let (counts, orders) = (counts.clone(), orders.clone());
        match plan.load {
            GeneratedLoad::Calls { proxied, rate } => {
                let caller = new_caller(&plan, number);
                let arrivals = rate.map(|_| arrivals.clone());
                clients.spawn(make_calls(caller, proxied, arrivals, counts, orders));
            }
            GeneratedLoad::SlowClients => {
                clients.spawn(slow_clients::run(plan.clone(), number, counts, orders));
            }
            GeneratedLoad::IdleStreams => {
                clients.spawn(idle_streams::run(plan.clone(), number, counts, orders));
            }
        }
    }
    if let GeneratedLoad::Calls { rate: Some(rate), .. } = plan.load {
        let (counts, orders) = (counts.clone(), orders.clone());
        tokio::spawn(let_calls_arrive(rate, plan.connections, arrivals, counts, orders));
    }
    let mut ticks = tokio::time::interval(Duration::from_millis(250));
    while *orders.borrow() == GeneratorOrder::Run {
        tokio::select! {
            _ = orders.changed() => {}
            _ = ticks.tick() => report(counts.report()),
        }
    }
    let acknowledged: Vec<AcknowledgedWrite> =
        clients.join_all().await.into_iter().flatten().collect();
    let mut last = counts.report();
    last.is_stopped = true;
    last.acknowledged = acknowledged.len() as u64;
    report(last.clone());
    while *orders.borrow() != GeneratorOrder::Verify {
        if orders.changed().await.is_err() {
            return;
        }
    }
    let lost = ask_again_for_all(&plan, acknowledged).await;
    last.lost_count = lost.len() as u64;
    last.lost = lost.into_iter().take(5).collect();
    last.is_verified = true;
    report(last);
}

fn new_caller(plan: &GeneratorPlan, number: usize) -> LoadCaller {
    let address = &plan.addresses[number % plan.addresses.len()];
    let token = &plan.tokens[number % plan.tokens.len()];
    LoadCaller::new(address, token, format!("{}-{number}", plan.name), plan.retention)
}

/// One connection's calls until the load ends; what was acknowledged.
async fn make_calls(
    mut caller: LoadCaller,
    proxied: bool,
    arrivals: Option<Arc<Semaphore>>,
    counts: Arc<GeneratorCounts>,
    mut orders: watch::Receiver<GeneratorOrder>,
) -> Vec<AcknowledgedWrite> {
    const KINDS: [CallKind; 4] =
        [CallKind::Command, CallKind::Record, CallKind::Event, CallKind::Lock];
    let calls = async {
        for number in 0_usize.. {
            match &arrivals {
                // Never closed.
                Some(arrivals) => {
                    arrivals.acquire().await.map(|arrival| arrival.forget()).unwrap_or(())
                }
                None => drop(counts.offered.fetch_add(1, Ordering::Relaxed)),
            }
            let kind = if proxied { CallKind::Proxied } else { KINDS[number % KINDS.len()] };
            let end = caller.call(kind).await;
            counts.count(end);
            if number == 0 {
                counts.open.fetch_add(1, Ordering::Relaxed);
            }
            if end == CallEnd::Failed {
                // Nothing can be sent while the server takes no connections.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    };
    // A call that is cut here is not acknowledged.
    tokio::select! {
        () = calls => {}
        _ = orders.wait_for(|order| *order != GeneratorOrder::Run) => {}
    }
    caller.acknowledged
}

/// Calls arrive at this rate, whether earlier ones are answered or not; at most one waits for each connection.
async fn let_calls_arrive(
    rate: u64,
    connections: usize,
    arrivals: Arc<Semaphore>,
    counts: Arc<GeneratorCounts>,
    orders: watch::Receiver<GeneratorOrder>,
) {
    let began = tokio::time::Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let mut offered = 0;
    while *orders.borrow() == GeneratorOrder::Run {
        ticks.tick().await;
        let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
        let room = connections.saturating_sub(arrivals.available_permits());
        arrivals.add_permits(room.min((due - offered) as usize));
        counts.offered.fetch_add(due - offered, Ordering::Relaxed);
        offered = due;
    }
}

async fn ask_again_for_all(plan: &GeneratorPlan, writes: Vec<AcknowledgedWrite>) -> Vec<String> {
    // A caller asks for what a caller of the same prefix was told, because events belong to its job.
    let mut clients = JoinSet::new();
    let busy = Arc::new(Semaphore::new(ASKING_AGAIN));
    let mut by_caller: std::collections::BTreeMap<usize, Vec<AcknowledgedWrite>> =
        Default::default();
    for write in writes {
        by_caller.entry(write.caller_number(&plan.name)).or_default().push(write);
    }
    for (number, writes) in by_caller {
        let mut caller = new_caller(plan, number);
        let busy = busy.clone();
        clients.spawn(async move {
            let _turn = busy.acquire().await;
            let mut lost = Vec::new();
            for write in writes {
                lost.extend(caller.ask_again(&write).await);
            }
            lost
        });
    }
    clients.join_all().await.into_iter().flatten().collect()
}
