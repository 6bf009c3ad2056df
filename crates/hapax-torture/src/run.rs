//! One run: starts everything, lets clients and faults loose, ends the faults, drains, checks.

use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::ask_again::{AcknowledgedKeys, ask_again};
use crate::history::{Observation, write_history};
use crate::installation::{Installation, StoreKind};
use crate::nemesis::{FaultKind, FaultThread, Nemesis};
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;
use crate::report::TortureReport;
use crate::workload::outbox::{ConsumerDatabase, OutboxWriter};
use crate::workload::transactions::TransactionDatabase;
use crate::workload::{
    TortureClient, WorkloadKind, broker, commands, events, line, locks, outbox, proxy, records,
    transactions,
};

/// Every client ends within this time after the last fault.
const END_TIMEOUT: Duration = Duration::from_secs(320);
/// How much longer a run may be for the sake of faults that it has not had.
const FIRST_ROUND_TIMEOUT: Duration = Duration::from_secs(180);

/// What to run.
#[derive(Clone, Debug)]
pub struct TortureConfig {
    /// The `hapax` binary.
    pub hapax: PathBuf,
    /// Where the data is.
    pub store: StoreKind,
    /// How long clients and faults run.
    pub duration: Duration,
    /// Decides the choices of all clients and faults. How their calls interleave is the machine's choice.
    pub seed: u64,
    /// The clients.
    pub workloads: Vec<WorkloadKind>,
    /// The faults; none for a quiet run.
    pub faults: Vec<FaultKind>,
    /// How many times the usual number of clients.
    pub clients: u32,
    /// How many hapax processes may be hit at once.
    pub fault_threads: u32,
    /// An older `hapax` binary, for [`FaultKind::Upgrade`].
    pub previous: Option<PathBuf>,
    /// Where the history is written, also when the run fails.
    pub history: Option<PathBuf>,
}

/// How a run went.
struct RunEnd {
    seconds: u64,
    crashed: Vec<String>,
}

/// Runs, checks, and ends all processes. `progress` gets a line every few seconds.
///
/// # Errors
///
/// When something could not be started, or did not end in time; the history is written before.
pub fn run_torture(
    config: &TortureConfig,
    progress: impl Fn(&str) + Sync,
) -> anyhow::Result<TortureReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let run = TortureRun::start(config, &runtime)?;
    let recorder = run.recorder.clone();
    let end = run.run(config, &runtime, &progress);
    // Followers of a broken server may still wait.
    runtime.shutdown_timeout(Duration::from_secs(1));
    let history = recorder.take();
    let written = config.history.as_ref().map_or(Ok(()), |file| {
        write_history(&history, BufWriter::new(File::create(file)?))
            .with_context(|| format!("the history {}", file.display()))
    });
    let RunEnd { seconds, crashed } = end?;
    written?;
    progress(&format!("checking {} observations", history.len()));
    Ok(TortureReport::of(history, seconds, crashed))
}

struct TortureRun {
    installation: Installation,
    recorder: Arc<HistoryRecorder>,
    over: Arc<AtomicBool>,
    consumer: Option<Arc<ConsumerDatabase>>,
    broker_consumer: Option<Arc<ConsumerDatabase>>,
    transactions: Option<TransactionDatabase>,
    factor: u32,
    next_client: Arc<AtomicU32>,
    seed: u64,
}

impl TortureRun {
    fn start(config: &TortureConfig, runtime: &Runtime) -> anyhow::Result<Self> {
        let mut installation = Installation::start(config)?;
        let recorder = Arc::new(HistoryRecorder::new());
        let store = config.store.name().to_owned();
        recorder.record_now(0, Observation::RunOn { store, seed: Some(config.seed) });
        let has = |kind| config.workloads.contains(&kind);
        if has(WorkloadKind::Proxy) {
            let upstream = runtime.block_on(proxy::start_upstream(recorder.clone()))?;
            installation.add_proxy(&upstream)?;
        }
        let mut consumer = None;
        if has(WorkloadKind::Outbox) {
            let made =
                runtime.block_on(ConsumerDatabase::make(&installation.store, "torture_effects"))?;
            let made = Arc::new(made);
            let hook = outbox::start_webhook(recorder.clone(), made.clone(), config.seed);
            let hook = runtime.block_on(hook)?;
            installation.add_relays(&hook)?;
            consumer = Some(made);
        }
        let mut broker_consumer = None;
        if has(WorkloadKind::Broker) {
            let _guard = runtime.enter();
            let made = ConsumerDatabase::make(&installation.store, "torture_broker_effects");
            let made = Arc::new(runtime.block_on(made)?);
            broker::start(&mut installation, recorder.clone(), made.clone(), config.seed)?;
            broker_consumer = Some(made);
        }
        let mut transactions = None;
        if has(WorkloadKind::Transactions) {
            transactions = runtime.block_on(TransactionDatabase::make(&installation))?;
        }
        if has(WorkloadKind::Line) {
            let bot = runtime.block_on(line::start_bot(recorder.clone(), config.seed))?;
            line::add_gateways(&mut installation, &bot)?;
        }
        Ok(Self {
            installation,
            recorder,
            over: Arc::new(AtomicBool::new(false)),
            consumer,
            broker_consumer,
            transactions,
            factor: config.clients,
            next_client: Arc::new(AtomicU32::new(1)),
            seed: config.seed,
        })
    }

    fn run(
        self,
        config: &TortureConfig,
        runtime: &Runtime,
        progress: &(impl Fn(&str) + Sync),
    ) -> anyhow::Result<RunEnd> {
        let mut clients = JoinSet::new();
        for kind in &config.workloads {
            let _guard = runtime.enter();
            self.spawn_clients(*kind, config.clients, &mut clients)?;
        }
        let began = Instant::now();
        self.cause_faults(config, began, progress)?;
        self.installation.heal()?;
        let crashed = self.installation.crashes();
        progress("the faults are over; draining");
        runtime.block_on(async {
            let ended = tokio::time::timeout(END_TIMEOUT, clients.join_all()).await;
            ended.map_err(|_| anyhow!("clients did not end within {END_TIMEOUT:?}"))?;
            let keys = AcknowledgedKeys::of(&self.recorder);
            ask_again(keys, &self.recorder, |prefix| self.new_client(prefix), progress).await?;
            if let Some(consumer) = &self.consumer {
                let lossy =
                    config.store.loses_at_failover().then(|| self.installation.open_store());
                outbox::drain(&self.recorder, consumer, lossy.transpose()?).await?;
            }
            if let Some(database) = &self.transactions {
                database.record_effects(&self.recorder).await?;
            }
            line::drain(&self.recorder, config.store.loses_at_failover()).await;
            if let Some(consumer) = &self.broker_consumer {
                let may_be_lost = config.store.loses_at_failover();
                broker::drain(&self.recorder, consumer, may_be_lost).await?;
            }
            anyhow::Ok(())
        })?;
        Ok(RunEnd { seconds: began.elapsed().as_secs(), crashed })
    }

    fn new_client(&self, prefix: &str) -> TortureClient {
        self.client_maker(prefix)()
    }

    /// Makes clients of the nodes whose names begin so.
    fn client_maker(&self, prefix: &str) -> impl Fn() -> TortureClient + Send + use<> {
        let addresses = self.installation.addresses(prefix);
        let (recorder, over) = (self.recorder.clone(), self.over.clone());
        let (next, seed, factor) = (self.next_client.clone(), self.seed, self.factor);
        move || {
            let number = next.fetch_add(1, Ordering::SeqCst);
            TortureClient::new(number, &addresses, seed, recorder.clone(), over.clone(), factor)
        }
    }

    fn spawn_clients(
        &self,
        kind: WorkloadKind,
        factor: u32,
        clients: &mut JoinSet<()>,
    ) -> anyhow::Result<()> {
        match kind {
            WorkloadKind::Locks => {
                let resource = Arc::new(locks::FencedResource::default());
                for _ in 0..6 * factor {
                    clients.spawn(locks::run(self.new_client("serve"), resource.clone()));
                }
            }
            WorkloadKind::Records => {
                for _ in 0..6 * factor {
                    clients.spawn(records::run(self.new_client("serve")));
                }
            }
            WorkloadKind::Commands => {
                for _ in 0..6 * factor {
                    clients.spawn(commands::run(self.new_client("serve")));
                }
            }
            WorkloadKind::Events => {
                for number in 0..3 * factor {
                    clients.spawn(events::run(number, self.client_maker("serve")));
                }
            }
            WorkloadKind::Proxy => {
                for _ in 0..5 * factor {
                    clients.spawn(proxy::run(self.new_client("proxy")));
                }
            }
            WorkloadKind::Outbox => {
                for _ in 0..3 * factor {
                    let writer = OutboxWriter::to(&self.installation)?;
                    let consumer = self.consumer.clone().context("a consumer")?;
                    clients.spawn(outbox::run(self.new_client("serve"), writer, consumer));
                }
            }
            WorkloadKind::Transactions => {
                for database in (0..4 * factor).filter_map(|_| self.transactions.clone()) {
                    clients.spawn(transactions::run(self.new_client("serve"), database));
                }
            }
            WorkloadKind::Broker => {
                for _ in 0..3 * factor {
                    let writer = OutboxWriter::to(&self.installation)?;
                    let consumer = self.broker_consumer.clone().context("a consumer")?;
                    let client = self.new_client("serve");
                    clients.spawn(broker::run(client, writer, consumer, broker::queue()?));
                }
            }
            WorkloadKind::Line => {
                for _ in 0..3 * factor {
                    clients.spawn(line::run(self.new_client("line"), line::secrets()?));
                }
            }
        }
        Ok(())
    }

    /// Runs the faults until the time is over.
    fn cause_faults(
        &self,
        config: &TortureConfig,
        began: Instant,
        progress: &(impl Fn(&str) + Sync),
    ) -> anyhow::Result<()> {
        let nemesis = Nemesis {
            installation: &self.installation,
            recorder: &self.recorder,
            over: &self.over,
            had_all_of_store: AtomicBool::new(false),
        };
        // A short run on a slow machine goes on until each fault of the store has happened once.
        let is_over = || {
            let all = nemesis.had_all_of_store.load(Ordering::SeqCst);
            let most = if all { Duration::ZERO } else { FIRST_ROUND_TIMEOUT };
            began.elapsed() >= config.duration + most
        };
        thread::scope(|scope| {
            let hapax = (0..config.fault_threads).map(|_| FaultThread::Hapax);
            let kinds = [FaultThread::Connections, FaultThread::Store, FaultThread::Broker]
                .into_iter()
                .chain(hapax);
            let threads: Vec<_> = (1..)
                .zip(kinds)
                .map(|(number, kind)| {
                    let random = SeededRandom::new(config.seed, number);
                    let nemesis = &nemesis;
                    scope.spawn(move || nemesis.cause(&config.faults, kind, random))
                })
                .collect();
            let mut next_line = Duration::from_secs(5);
            while !is_over() {
                thread::sleep(Duration::from_millis(100));
                if began.elapsed() > next_line {
                    next_line += Duration::from_secs(5);
                    let (calls, faults) = self.recorder.counts();
                    let seconds = began.elapsed().as_secs();
                    progress(&format!(
                        "{seconds:>5} s  {calls:>8} observations  {faults:>5} faults"
                    ));
                }
            }
            self.over.store(true, Ordering::SeqCst);
            for thread in threads {
                let ended = thread.join();
                ended.map_err(|_| anyhow!("a fault could not be undone"))?;
            }
            anyhow::Ok(())
        })
        .context("the faults")
    }
}
