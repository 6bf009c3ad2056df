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
    /// The disk of SQLite or Redis loses its power and with it what was not synced. Needs the right to mount.
    PowerCut,
}

impl FaultKind {
    /// All that need no special rights.
    pub const ALL: [Self; 12] = [
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
            Self::PowerCut => "power-cut",
        }
    }

    /// Processes and connections have a thread each, so that both kinds of faults meet.
    fn hits_processes(self) -> bool {
        matches!(
            self,
            Self::KillHapax
                | Self::PauseHapax
                | Self::KillStore
                | Self::PauseStore
                | Self::PowerCut
        )
    }

    fn needs_store_server(self) -> bool {
        self.name().contains("store")
    }
}

/// Causes faults until `over`.
pub(crate) struct Nemesis<'a> {
    pub(crate) installation: &'a Installation,
    pub(crate) recorder: &'a HistoryRecorder,
    pub(crate) over: &'a AtomicBool,
}

impl Nemesis<'_> {
    /// One thread's faults: those of processes, or those of connections.
    pub(crate) fn cause(&self, kinds: &[FaultKind], processes: bool, mut random: SeededRandom) {
        let has_server = !matches!(self.installation.store, RunningStore::Sqlite(_));
        let kinds: Vec<FaultKind> = kinds
            .iter()
            .copied()
            .filter(|kind| kind.hits_processes() == processes)
            .filter(|kind| has_server || !kind.needs_store_server())
            .collect();
        if kinds.is_empty() {
            return;
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
            rest = random.millis(50, 400);
            if kind.needs_store_server() {
                // While the store is away nothing happens that could go wrong.
                rest = rest.max(began.elapsed().min(Duration::from_secs(3)));
            }
        }
    }

    /// Causes a fault and undoes it; what it hit, or `None` if nothing happened.
    fn cause_one(&self, kind: FaultKind, random: &mut SeededRandom) -> Option<String> {
        let store = &self.installation.store;
        let node = random.pick(&self.installation.nodes);
        match kind {
            FaultKind::KillHapax => {
                self.installation.note_crashes();
                kill(node);
                self.sleep(random.millis(0, 200));
                node.program.restart();
                // Not always: the next fault may hit a process that is starting.
                if !random.one_in(4) && node.wait_until_ready().is_ok() {
                    node.was_killed.store(false, Ordering::SeqCst);
                }
                return Some(node.name.clone());
            }
            FaultKind::PauseHapax => {
                if node.program.has_ended() {
                    return None;
                }
                node.program.stop();
                self.sleep(pause(random));
                node.program.cont();
                return Some(node.name.clone());
            }
            FaultKind::KillStore => {
                store.kill();
                self.sleep(random.millis(0, 500));
                store.restart();
            }
            FaultKind::PowerCut => {
                let outcome = self.installation.cut_power();
                assert!(outcome.is_ok(), "the power does not come back: {outcome:?}");
            }
            FaultKind::PauseStore => {
                store.stop();
                self.sleep(pause(random));
                store.cont();
            }
            FaultKind::CutStore
            | FaultKind::StallStore
            | FaultKind::SlowStore
            | FaultKind::LoseStoreAnswer => {
                let link = self.installation.store_link.as_ref()?;
                return self.disturb(kind, link, random).then(|| "store".to_owned());
            }
            FaultKind::CutClient
            | FaultKind::StallClient
            | FaultKind::SlowClient
            | FaultKind::LoseClientAnswer => {
                let link = node.link.as_ref()?;
                return self.disturb(kind, link, random).then(|| node.name.clone());
            }
        }
        Some("store".to_owned())
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

fn kill(node: &HapaxNode) {
    node.was_killed.store(true, Ordering::SeqCst);
    node.program.kill();
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
