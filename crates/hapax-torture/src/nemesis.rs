//! The faults, and the threads that cause them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hapax_testkit::TcpProxy;

use crate::history::Observation;
use crate::installation::{HapaxNode, Installation, RunningStore};
use crate::random::SeededRandom;
use crate::recorder::HistoryRecorder;
use crate::workload::LEASE;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum FaultKind {
    /// `kill -9` of a hapax process, and its restart.
    KillHapax,
    /// A hapax process is stopped (SIGSTOP), mostly beyond every lease, and continues.
    PauseHapax,
    /// `kill -9` of the store's server, and its restart.
    KillStore,
    /// The store's server is stopped and continues.
    PauseStore,
    /// All connections to the store are closed.
    CutStore,
    /// All connections to the store carry nothing for a while.
    StallStore,
    /// Each answer of the store is late.
    SlowStore,
    /// The store does what it was asked, and the answer is lost.
    LoseStoreAnswer,
    /// All client connections of a hapax process are closed.
    CutClient,
    /// All client connections of a hapax process carry nothing for a while.
    StallClient,
    /// Each answer to a client is late.
    SlowClient,
    /// hapax does what it was asked, and the answer is lost.
    LoseClientAnswer,
    /// `kill -9` of the broker, and its restart.
    KillBroker,
    /// The broker is stopped and continues.
    PauseBroker,
    /// A master of a store with replicas is killed, paused or demoted, a replica takes its place, and the old master
    /// comes back as a replica.
    Failover,
    /// Slots of a Redis Cluster move to another master.
    Reshard,
    /// The disk of SQLite or Redis loses its power and with it what was not synced. Needs the right to mount.
    PowerCut,
    /// The disk of SQLite or Redis is full for a while. Needs the right to mount.
    DiskFull,
    /// The wall clock of a hapax process is set, and runs too fast or too slow. Needs libfaketime.
    ClockStep,
    /// A hapax process is killed and started with another version of the binary. Needs `--previous`.
    Upgrade,
}

impl FaultKind {
    /// All that need no special rights and no further program; those that a store cannot have do not happen.
    pub const ALL: [Self; 16] = [
        Self::KillHapax,
        Self::PauseHapax,
        Self::KillStore,
        Self::PauseStore,
        Self::CutStore,
        Self::StallStore,
        Self::SlowStore,
        Self::LoseStoreAnswer,
        Self::CutClient,
        Self::StallClient,
        Self::SlowClient,
        Self::LoseClientAnswer,
        Self::KillBroker,
        Self::PauseBroker,
        Self::Failover,
        Self::Reshard,
    ];

    /// Its name on the command line and in histories.
    pub fn name(self) -> &'static str {
        match self {
            Self::KillHapax => "kill-hapax",
            Self::PauseHapax => "pause-hapax",
            Self::KillStore => "kill-store",
            Self::PauseStore => "pause-store",
            Self::CutStore => "cut-store",
            Self::StallStore => "stall-store",
            Self::SlowStore => "slow-store",
            Self::LoseStoreAnswer => "lose-store-answer",
            Self::CutClient => "cut-client",
            Self::StallClient => "stall-client",
            Self::SlowClient => "slow-client",
            Self::LoseClientAnswer => "lose-client-answer",
            Self::KillBroker => "kill-broker",
            Self::PauseBroker => "pause-broker",
            Self::Failover => "failover",
            Self::Reshard => "reshard",
            Self::PowerCut => "power-cut",
            Self::DiskFull => "disk-full",
            Self::ClockStep => "clock-step",
            Self::Upgrade => "upgrade",
        }
    }

    /// Whether the data has to be on a disk of its own, which only root can make.
    pub fn needs_disk(self) -> bool {
        matches!(self, Self::PowerCut | Self::DiskFull)
    }

    fn is_about_connections(self) -> bool {
        ["cut-", "stall-", "slow-", "lose-"].iter().any(|begin| self.name().starts_with(begin))
    }

    /// Whether it hits one hapax process.
    fn is_about_hapax(self) -> bool {
        matches!(self, Self::KillHapax | Self::PauseHapax | Self::ClockStep | Self::Upgrade)
    }

    fn is_about_broker(self) -> bool {
        matches!(self, Self::KillBroker | Self::PauseBroker)
    }

    /// Whether the store is away meanwhile.
    fn hits_store(self) -> bool {
        self.name().ends_with("-store") || matches!(self, Self::LoseStoreAnswer | Self::Failover)
    }

    /// Whether an installation can have it.
    fn is_possible(self, installation: &Installation) -> bool {
        let store = &installation.store;
        match self {
            Self::KillStore | Self::PauseStore => !store.servers().is_empty(),
            Self::CutStore | Self::StallStore | Self::SlowStore | Self::LoseStoreAnswer => {
                !installation.store_links.is_empty()
            }
            Self::Failover => matches!(
                store,
                RunningStore::Sentinel(_) | RunningStore::Cluster(_) | RunningStore::Standby(_)
            ),
            Self::Reshard => matches!(store, RunningStore::Cluster(_)),
            Self::KillBroker | Self::PauseBroker => installation.broker.is_some(),
            _ => true,
        }
    }
}

/// The faults of one thread. Servers, processes and connections have threads of their own, so that the kinds meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultThread {
    /// Faults of the store's servers and disk.
    Store,
    /// Faults of hapax processes.
    Hapax,
    /// Faults of the broker.
    Broker,
    /// Faults of connections.
    Connections,
}

impl FaultThread {
    fn causes(self, kind: FaultKind) -> bool {
        match self {
            Self::Store => {
                !kind.is_about_hapax() && !kind.is_about_connections() && !kind.is_about_broker()
            }
            Self::Hapax => kind.is_about_hapax(),
            Self::Broker => kind.is_about_broker(),
            Self::Connections => kind.is_about_connections(),
        }
    }
}

/// Causes faults until `over`.
pub(crate) struct Nemesis<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) recorder: &'a HistoryRecorder,
    pub(crate) over: &'a AtomicBool,
    /// Every fault of the store's servers has happened once.
    pub(crate) had_all_of_store: AtomicBool,
}

impl Nemesis<'_> {
    /// One thread's faults.
    pub(crate) fn cause(&self, kinds: &[FaultKind], thread: FaultThread, mut random: SeededRandom) {
        let kinds: Vec<FaultKind> = kinds
            .iter()
            .copied()
            .filter(|kind| thread.causes(*kind) && kind.is_possible(self.installation))
            .collect();
        let finish_round = || {
            if thread == FaultThread::Store {
                self.had_all_of_store.store(true, Ordering::SeqCst);
            }
        };
        if kinds.is_empty() {
            return finish_round();
        }
        // Every kind comes once before any comes again, so that a short run has them all.
        let mut deck: Vec<FaultKind> = Vec::new();
        let mut rest = random.millis(50, 400);
        while self.sleep(rest) {
            if deck.is_empty() {
                deck.clone_from(&kinds);
            }
            let kind = deck.swap_remove(random.below(deck.len() as u64) as usize);
            let began = Instant::now();
            let from = self.recorder.now();
            if let Some(target) = self.cause_one(kind, &mut random) {
                let fault = Observation::Fault { kind: kind.name().to_owned(), target };
                self.recorder.record(0, from, fault);
            }
            if deck.is_empty() {
                finish_round();
            }
            rest = random.millis(50, 400);
            if kind.hits_store() {
                // While the store is away nothing happens that could go wrong. A failover leaves it only for a while.
                let most = if kind == FaultKind::Failover { 1 } else { 3 };
                rest = rest.max(began.elapsed().min(Duration::from_secs(most)));
            }
        }
    }

    /// Causes a fault and undoes it; what it hit, or `None` if nothing happened.
    fn cause_one(&self, kind: FaultKind, random: &mut SeededRandom) -> Option<String> {
        let store = &self.installation.store;
        match kind {
            FaultKind::KillHapax
            | FaultKind::PauseHapax
            | FaultKind::ClockStep
            | FaultKind::Upgrade => {
                // A node that another thread's fault has hit is left alone.
                let node = random.pick(&self.installation.nodes);
                let _fault = node.fault.try_lock().ok()?;
                self.hit_hapax(kind, node, random)
            }
            FaultKind::KillStore => {
                let servers = store.servers();
                let server = random.pick(&servers);
                server.kill();
                self.sleep(random.millis(0, 500));
                server.restart();
                Some("store".to_owned())
            }
            FaultKind::PauseStore => {
                let servers = store.servers();
                let server = random.pick(&servers);
                server.stop();
                self.sleep(pause(random));
                server.cont();
                Some("store".to_owned())
            }
            FaultKind::KillBroker | FaultKind::PauseBroker => {
                let broker = self.installation.broker.as_ref()?;
                if kind == FaultKind::KillBroker {
                    broker.kill();
                    self.sleep(random.millis(0, 500));
                    broker.restart();
                } else {
                    broker.stop();
                    self.sleep(pause(random));
                    broker.cont();
                }
                // The relays need some time to send what waits.
                self.sleep(random.millis(500, 2000));
                Some("broker".to_owned())
            }
            FaultKind::Failover => store.fail_over(random),
            FaultKind::Reshard => store.reshard(random),
            FaultKind::PowerCut => {
                let outcome = self.installation.cut_power();
                assert!(outcome.is_ok(), "the power does not come back: {outcome:?}");
                Some("store".to_owned())
            }
            FaultKind::DiskFull => {
                let disk = self.installation.disk.as_ref()?;
                let full = disk.fill();
                assert!(full.is_ok(), "the disk cannot be filled: {full:?}");
                self.sleep(random.millis(200, 3000));
                let outcome = self.installation.make_room();
                assert!(outcome.is_ok(), "the disk has no room again: {outcome:?}");
                Some("disk".to_owned())
            }
            FaultKind::CutStore
            | FaultKind::StallStore
            | FaultKind::SlowStore
            | FaultKind::LoseStoreAnswer => {
                let link = random.pick(&self.installation.store_links);
                self.disturb(kind, link, random).then(|| "store".to_owned())
            }
            FaultKind::CutClient
            | FaultKind::StallClient
            | FaultKind::SlowClient
            | FaultKind::LoseClientAnswer => {
                let node = random.pick(&self.installation.nodes);
                let link = node.link.as_ref()?;
                self.disturb(kind, link, random).then(|| node.name.clone())
            }
        }
    }

    /// A fault of one hapax process; what it hit.
    fn hit_hapax(
        &self,
        kind: FaultKind,
        node: &HapaxNode,
        random: &mut SeededRandom,
    ) -> Option<String> {
        let name = node.name.clone();
        match kind {
            FaultKind::PauseHapax => {
                if node.program.has_ended() {
                    return None;
                }
                node.program.stop();
                self.sleep(pause(random));
                node.program.cont();
                return Some(name);
            }
            FaultKind::ClockStep => {
                let seconds = random.below(1200) as i64 - 600;
                let rate = *random.pick(&["1", "1", "1.2", "0.8", "5"]);
                let is_set = node.set_clock(seconds, rate).ok()?;
                return is_set.then(|| format!("{name} {seconds:+} s, {rate} times as fast"));
            }
            _ => {}
        }
        self.installation.note_crashes();
        node.kill();
        self.sleep(random.millis(0, 200));
        let mut what = name;
        if kind == FaultKind::Upgrade {
            what = format!("{what} {}", self.installation.change_binary(node)?);
        } else {
            node.program.restart();
        }
        // Not always: the next fault may hit a process that is starting.
        if !random.one_in(4) && node.wait_until_ready().is_ok() {
            node.was_killed.store(false, Ordering::SeqCst);
        }
        Some(what)
    }

    /// Disturbs connections; whether anything happened.
    fn disturb(&self, kind: FaultKind, link: &TcpProxy, random: &mut SeededRandom) -> bool {
        match kind {
            FaultKind::CutStore | FaultKind::CutClient => link.cut(),
            FaultKind::SlowStore | FaultKind::SlowClient => {
                link.delay_answers(random.millis(20, 300));
                self.sleep(random.millis(200, 2000));
                link.resume();
            }
            FaultKind::LoseStoreAnswer | FaultKind::LoseClientAnswer => {
                let before = link.dropped_answers();
                link.drop_next_answer();
                let deadline = Instant::now() + Duration::from_secs(1);
                while link.dropped_answers() == before && Instant::now() < deadline {
                    thread::sleep(Duration::from_millis(2));
                }
                return link.dropped_answers() > before;
            }
            _ => {
                link.stall();
                self.sleep(pause(random));
                link.resume();
            }
        }
        true
    }

    /// Sleeps; false if the run is over.
    fn sleep(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if self.over.load(Ordering::SeqCst) {
                return false;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(50)));
        }
        !self.over.load(Ordering::SeqCst)
    }
}

/// Two of three are longer than every lease.
fn pause(random: &mut SeededRandom) -> Duration {
    let lease = LEASE.as_millis() as u64;
    if random.one_in(3) {
        random.millis(50, lease / 2)
    } else {
        random.millis(lease * 5 / 4, lease * 2)
    }
}
