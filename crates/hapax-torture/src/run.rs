//! One run: starts everything, lets clients and faults loose, ends the faults, drains, checks.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::check::check_history;
use crate::history::{CallOutcome, CommandAnswer, Observation};
use crate::installation::{Installation, StoreKind};
use crate::nemesis::{FaultKind, Nemesis};
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;
use crate::report::TortureReport;
use crate::workload::outbox::{ConsumerDatabase, OutboxWriter};
use crate::workload::{
    TortureClient, WorkloadKind, commands, events, locks, outbox, proxy, records,
};

/// Every client ends within this time after the last fault.
const END_TIMEOUT: Duration = Duration::from_secs(320);
/// How many keys of each workload are asked for once more at the end.
const KEYS_AT_THE_END: usize = 200;

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
}

/// Runs, checks, and ends all processes. `progress` gets a line every few seconds.
///
/// # Errors
///
/// When something could not be started, or did not end in time.
pub fn run_torture(
    config: &TortureConfig,
    progress: impl Fn(&str) + Sync,
) -> anyhow::Result<TortureReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = TortureRun::start(config, &runtime)?.run(config, &runtime, &progress);
    // Followers of a broken server may still wait.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

struct TortureRun {
    installation: Installation,
    recorder: Arc<HistoryRecorder>,
    over: Arc<AtomicBool>,
    consumer: Option<Arc<ConsumerDatabase>>,
    next_client: Arc<AtomicU32>,
    seed: u64,
}

impl TortureRun {
    fn start(config: &TortureConfig, runtime: &Runtime) -> anyhow::Result<Self> {
        let power_cuts = config.faults.contains(&FaultKind::PowerCut);
        let mut installation = Installation::start(config.store, &config.hapax, power_cuts)?;
        let recorder = Arc::new(HistoryRecorder::new());
        let has = |kind| config.workloads.contains(&kind);
        if has(WorkloadKind::Proxy) {
            let upstream = runtime.block_on(proxy::start_upstream(recorder.clone()))?;
            installation.add_proxy(&upstream)?;
        }
        let mut consumer = None;
        if has(WorkloadKind::Outbox) {
            let made = runtime.block_on(ConsumerDatabase::make(&installation.store))?;
            let made = Arc::new(made);
            let hook = outbox::start_webhook(recorder.clone(), made.clone(), config.seed);
            let hook = runtime.block_on(hook)?;
            installation.add_relays(&hook)?;
            consumer = Some(made);
        }
        Ok(Self {
            installation,
            recorder,
            over: Arc::new(AtomicBool::new(false)),
            consumer,
            next_client: Arc::new(AtomicU32::new(1)),
            seed: config.seed,
        })
    }

    fn run(
        self,
        config: &TortureConfig,
        runtime: &Runtime,
        progress: &(impl Fn(&str) + Sync),
    ) -> anyhow::Result<TortureReport> {
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
            self.ask_again().await;
            if let Some(consumer) = &self.consumer {
                outbox::drain(&self.recorder, consumer).await?;
            }
            anyhow::Ok(())
        })?;
        let seconds = began.elapsed().as_secs();
        drop(self.installation);
        let history = self.recorder.take();
        progress(&format!("checking {} observations", history.len()));
        let violations = check_history(&history);
        Ok(TortureReport {
            store: config.store.name().to_owned(),
            seed: config.seed,
            seconds,
            history,
            violations,
            crashed,
        })
    }

    fn new_client(&self, prefix: &str) -> TortureClient {
        self.client_maker(prefix)()
    }

    /// Makes clients of the nodes whose names begin so.
    fn client_maker(&self, prefix: &str) -> impl Fn() -> TortureClient + Send + use<> {
        let addresses = self.installation.addresses(prefix);
        let (recorder, over) = (self.recorder.clone(), self.over.clone());
        let (next, seed) = (self.next_client.clone(), self.seed);
        move || {
            let number = next.fetch_add(1, Ordering::SeqCst);
            TortureClient::new(number, &addresses, seed, recorder.clone(), over.clone())
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
        }
        Ok(())
    }

    /// Runs the faults in two threads until the time is over.
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
        };
        thread::scope(|scope| {
            let threads = [true, false].map(|processes| {
                let random = SeededRandom::new(config.seed, u64::from(processes) + 1);
                let nemesis = &nemesis;
                scope.spawn(move || nemesis.cause(&config.faults, processes, random))
            });
            let mut next_line = Duration::from_secs(5);
            while began.elapsed() < config.duration {
                let left = config.duration.saturating_sub(began.elapsed());
                thread::sleep(left.min(Duration::from_millis(200)));
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

    /// When everything works again, records are read and answers are asked for once more.
    async fn ask_again(&self) {
        let keys = |find: fn(&Observation) -> Option<String>| {
            let all: BTreeSet<String> = self.recorder.find(find);
            let step = all.len().div_ceil(KEYS_AT_THE_END).max(1);
            all.into_iter().step_by(step).collect::<Vec<_>>()
        };
        let written = keys(|what| match what {
            Observation::RecordPut { key, .. } => Some(key.clone()),
            _ => None,
        });
        let completed = keys(|what| match what {
            Observation::CommandComplete { key, outcome: CallOutcome::Done(()), .. }
            | Observation::CommandBegin {
                key,
                outcome: CallOutcome::Done(CommandAnswer::Replayed(_)),
                ..
            } => Some(key.clone()),
            _ => None,
        });
        let answered = keys(|what| match what {
            Observation::ProxyRequest { key, outcome: CallOutcome::Done(_), .. } => {
                Some(key.clone())
            }
            _ => None,
        });
        records::read_all(self.new_client("serve"), written).await;
        commands::ask_all(self.new_client("serve"), completed).await;
        if !answered.is_empty() {
            proxy::ask_all(self.new_client("proxy"), answered).await;
        }
    }
}
