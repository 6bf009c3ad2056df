//! `kill -9` in the middle of work: nothing that was acknowledged is lost, and no fence comes twice.
//!
//! The worker is this test binary, started again as a child that prints a line for each answer it
//! got. What it printed before it died was acknowledged.

use std::collections::{HashMap, HashSet};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hapax_conformance::scale;
use hapax_core::claims::ClaimState;
use hapax_core::{Claimed, Claims, Expect, GiveBack, Key, Put, Records, Step, Store, Tenant};
use hapax_postgres::{PostgresConfig, PostgresStore};
use hapax_testkit::Postgres;
use tokio::task::JoinSet;

use crate::{ask, key, open};

pub(crate) const URL: &str = "HAPAX_TEST_CHILD_URL";
const NAME: &str = "HAPAX_TEST_CHILD_NAME";
const TASKS: u64 = 16;
/// A timeout that does not fail on a busy machine.
const PATIENT: Duration = Duration::from_secs(120);

fn record(name: &str) -> Key {
    Key::record(&Tenant::default(), name).unwrap()
}

/// The child's work; does nothing unless it is started as the child.
#[test]
fn worker() {
    run_worker(|store, name, tasks| {
        let count = Arc::new(AtomicU64::new(0));
        for _ in 0..TASKS {
            tasks.spawn(work(store.clone(), name.to_owned(), count.clone()));
        }
    });
}

/// Runs the tasks of a worker, if this process was started as one.
pub(crate) fn run_worker(start: impl FnOnce(&PostgresStore, &str, &mut JoinSet<()>)) {
    let (Ok(url), Ok(name)) = (env::var(URL), env::var(NAME)) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // The server may be down for a while, and that is no reason to end.
        let config = PostgresConfig::new(url).timeout(Duration::from_secs(5));
        let mut tasks = JoinSet::new();
        start(&PostgresStore::open(config).unwrap(), &name, &mut tasks);
        tasks.join_all().await;
    });
}

pub(crate) fn acknowledge(line: &str) {
    // One write, so that lines of two tasks never mix; past the test harness, which captures.
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(format!("ACK {line}\n").as_bytes());
    let _ = out.flush();
}

async fn work(store: PostgresStore, name: String, count: Arc<AtomicU64>) {
    loop {
        let n = count.fetch_add(1, Ordering::Relaxed);
        let own = format!("{name}-{n}");
        if let Ok(Claimed::Granted { ticket, .. }) = store.claim(&key(&own), &ask()).await {
            acknowledge(&format!("grant {own} {}", ticket.fence));
            let value = Bytes::from(format!("value of {own}"));
            if let Ok(Step::Done(_)) = store.settle(&key(&own), &ticket.token, value).await {
                acknowledge(&format!("settle {own} {}", ticket.fence));
            }
        }
        if let Ok(Put::Stored { version, .. }) =
            store.put(&record(&own), own.clone().into(), &Expect::Absent, None).await
        {
            acknowledge(&format!("put {own} {}", version.as_str()));
        }
        // A key that all workers share, whose fences must grow across all of them.
        let shared = format!("shared{}", n % 4);
        if let Ok(Claimed::Granted { ticket, .. }) = store.claim(&key(&shared), &brief()).await {
            acknowledge(&format!("turn {shared} {}", ticket.fence));
            let _ = store.give_back(&key(&shared), &ticket.token, GiveBack::Forget).await;
        }
    }
}

/// Does not outlive its owner for long.
fn brief() -> hapax_core::ClaimRequest {
    hapax_core::ClaimRequest::new(Duration::from_millis(50))
}

/// Killed when dropped: it would work on after a test that failed.
pub(crate) struct Worker {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    /// Starts this binary again, with this test of it alone.
    pub(crate) fn start(test: &str, url: &str, name: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(URL, url)
            .env(NAME, name)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let output = BufReader::new(child.stdout.take().unwrap());
        let reader = std::thread::spawn({
            let lines = lines.clone();
            move || {
                for line in output.lines().map_while(Result::ok) {
                    // The harness may have begun the first line.
                    if let Some(at) = line.find("ACK ") {
                        lines.lock().unwrap().push(line[at + 4..].to_owned());
                    }
                }
            }
        });
        Self { child, lines, reader: Some(reader) }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.lines.lock().unwrap().len()
    }

    pub(crate) fn wait_for(&self, acknowledged: usize) {
        hapax_testkit::wait_for("acknowledgements", PATIENT, || {
            (self.acknowledged() >= acknowledged).then_some(())
        });
    }

    /// Waits until it was told about something of this kind.
    pub(crate) fn wait_for_a(&self, what: &str) {
        hapax_testkit::wait_for(what, PATIENT, || {
            let lines = self.lines.lock().unwrap();
            lines.iter().any(|line| line.starts_with(what)).then_some(())
        });
    }

    pub(crate) fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.reader.take().unwrap().join().unwrap();
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The acknowledged steps, in the order of each worker's own lines.
#[derive(Default)]
struct Ledger {
    seen: HashSet<u64>,
    turns: HashMap<String, u64>,
    grants: HashMap<String, u64>,
    settles: HashSet<String>,
    puts: HashMap<String, String>,
}

impl Ledger {
    fn enter(&mut self, lines: Vec<String>) {
        for line in lines {
            let mut words = line.split(' ');
            let (what, name) = (words.next().unwrap(), words.next().unwrap().to_owned());
            let number = words.next().unwrap();
            let fence: u64 = number.parse().unwrap();
            match what {
                "settle" => {
                    assert_eq!(self.grants.get(&name), Some(&fence));
                    self.settles.insert(name);
                    continue;
                }
                "put" => drop(self.puts.insert(name, number.to_owned())),
                "grant" => drop(self.grants.insert(name, fence)),
                "turn" => {
                    // Lines of two tasks may come in another order than their grants, but not
                    // those of two workers, of which the first was dead before.
                    self.turns
                        .entry(name)
                        .and_modify(|last| *last = fence.max(*last))
                        .or_insert(fence);
                }
                other => panic!("{other}"),
            }
            assert!(self.seen.insert(fence), "{fence} was given twice");
        }
    }

    async fn check(&self, store: &PostgresStore) {
        for (name, fence) in &self.grants {
            let view = store.look(&key(name)).await.unwrap().expect("a grant was lost");
            assert_eq!(view.fence.map(|f| f.0), Some(*fence));
            match view.state {
                ClaimState::Settled { value, .. } => assert_eq!(value, format!("value of {name}")),
                other => assert!(!self.settles.contains(name), "a settle was lost: {other:?}"),
            }
        }
        for (name, version) in &self.puts {
            let record = store.get(&record(name)).await.unwrap().expect("a put was lost");
            assert_eq!((record.version.as_str(), &record.value[..]), (&**version, name.as_bytes()));
        }
        // Whatever comes now is larger than everything before.
        let Claimed::Granted { ticket, .. } = store.claim(&key("after-all"), &ask()).await.unwrap()
        else {
            panic!()
        };
        let back =
            store.give_back(&key("after-all"), &ticket.token, GiveBack::Forget).await.unwrap();
        assert_eq!(back, Step::Done(ticket.fence));
        assert!(self.seen.iter().all(|fence| *fence < ticket.fence.0), "a fence went back");
    }
}

#[test]
fn killed_client_loses_nothing_acknowledged() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = open(&server.url());
    runtime.block_on(store.ping()).unwrap();
    let mut ledger = Ledger::default();
    for kill in 0..scale(30) {
        let worker = Worker::start("kills::worker", &server.url(), &format!("c{kill}"));
        // A different moment each time.
        worker.wait_for(40 + kill as usize % 7 * 9);
        let before: HashMap<_, _> = ledger.turns.clone();
        let lines = worker.kill();
        for line in lines.iter().filter(|line| line.starts_with("turn ")) {
            let words: Vec<_> = line.split(' ').collect();
            let fence: u64 = words[2].parse().unwrap();
            assert!(before.get(words[1]).is_none_or(|last| fence > *last), "a fence went back");
        }
        ledger.enter(lines);
    }
    assert!(!ledger.settles.is_empty() && !ledger.puts.is_empty() && !ledger.turns.is_empty());
    runtime.block_on(ledger.check(&store));
}

#[test]
fn killed_server_loses_nothing_acknowledged() {
    let server = Postgres::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(open(&server.url()).ping()).unwrap();
    let mut ledger = Ledger::default();
    let worker = Worker::start("kills::worker", &server.url(), "s");
    for _ in 0..scale(4) {
        worker.wait_for(worker.acknowledged() + 60);
        server.kill();
        server.restart();
    }
    // The worker recovers without a restart.
    worker.wait_for(worker.acknowledged() + 60);
    ledger.enter(worker.kill());
    runtime.block_on(ledger.check(&open(&server.url())));
}
