//! What this machine can do with logs and queues: appends by 1 and 64 tasks beside raw inserts of the
//! same row, and items enqueued, leased and acknowledged. Trust the ratios, not the rates.
//!
//! `cargo run --release -p hapax-sqlite --example streams [folder]`

#![expect(clippy::print_stdout, reason = "a measurement is for reading")]

use std::path::Path;
use std::time::{Duration, Instant};

use hapax_core::log::{Event, Keep};
use hapax_core::queue::{Item, QueueName, Take};
use hapax_core::{Fingerprint, Key, Log, Queue, Tenant};
use hapax_sqlite::{SqliteStore, migrate};
use rusqlite::{Connection, params};

const FOR: Duration = Duration::from_secs(3);
const PAYLOAD: [u8; 200] = [b'x'; 200];
/// Events of one job, as a progress bar has.
const EVENTS: u64 = 20;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = tempfile::tempdir_in(parent)?;
    for per_commit in [1, 64] {
        let (rate, cpu) = raw(&folder.path().join(format!("raw{per_commit}.db")), per_commit)?;
        println!("raw inserts, {per_commit:>2} a commit: {rate:>7.0}/s, {cpu:>4.0} µs of CPU each");
    }
    for (tasks, each) in [(1, 1), (64, 1), (1, 64)] {
        let store = SqliteStore::open(folder.path().join(format!("log{tasks}-{each}.db")))?;
        let (rate, cpu) = appends(&store, tasks, each).await;
        println!(
            "appends, {tasks:>2} tasks of {each:>2} at once: {rate:>7.0}/s, {cpu:>4.0} µs of CPU each"
        );
    }
    for (keys, batch) in [("none", 100), ("own", 100), ("shared", 100), ("own", 1000)] {
        let store = SqliteStore::open(folder.path().join(format!("queue{keys}{batch}.db")))?;
        for (what, (rate, cpu)) in queue(&store, keys, batch).await? {
            println!(
                "{what}, key {keys}, {batch} at once: {rate:>7.0}/s, {cpu:>4.0} µs of CPU each"
            );
        }
    }
    Ok(())
}

/// The least that a durable entry costs: one row of the same table.
fn raw(path: &Path, per_commit: u64) -> rusqlite::Result<(f64, f64)> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    migrate(&connection).expect("a new file");
    let fingerprint = Fingerprint::of(&[&PAYLOAD]);
    let start = Start::now();
    let mut rows = 0_u64;
    while start.time.elapsed() < FOR {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for _ in 0..per_commit {
            rows += 1;
            let (job, offset) = ((rows / EVENTS) as i64, (rows % EVENTS) as i64);
            connection
                .prepare_cached(
                    "INSERT INTO hapax_entries \
                            (job, offset, stage, seq, closes, fingerprint, partition, payload) \
                     VALUES (?1, ?2, 'vision', ?2, 0, ?3, ?4, ?5)",
                )?
                .execute(params![job, offset, fingerprint.as_str(), job % 256, PAYLOAD])?;
        }
        connection.execute_batch("COMMIT")?;
    }
    Ok(start.each(rows))
}

async fn appends(store: &SqliteStore, tasks: u64, each: u64) -> (f64, f64) {
    let start = Start::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut done = 0;
                while start.time.elapsed() < FOR {
                    let events: Vec<_> = (done..done + each).map(|n| event(task, n)).collect();
                    let answers = store.append(&events, &Keep::default()).await;
                    assert_eq!(answers.expect("an answer").len() as u64, each);
                    done += each;
                }
                done
            })
        })
        .collect();
    let mut done = 0;
    for task in running {
        done += task.await.expect("no panic");
    }
    start.each(done)
}

fn event(task: u64, n: u64) -> Event {
    let name = format!("{task}-{}", n / EVENTS);
    Event {
        job: Key::job(&Tenant::default(), "bench", &name).expect("a short name"),
        stage: "vision".into(),
        seq: n % EVENTS,
        fingerprint: Fingerprint::of(&[&PAYLOAD, &n.to_be_bytes()]),
        payload: PAYLOAD.to_vec().into(),
        closes: false,
    }
}

async fn queue(
    store: &SqliteStore,
    keys: &str,
    batch: usize,
) -> Result<[(&'static str, (f64, f64)); 2], Box<dyn std::error::Error>> {
    const ITEMS: usize = 100_000;
    let outbox = QueueName::outbox();
    let item = |n: usize| {
        let item = Item::new(&Tenant::default(), "bench", PAYLOAD.to_vec());
        match keys {
            "own" => item.key(&format!("k{n}")),
            "shared" => item.key(&format!("k{}", n % 10)),
            _ => item,
        }
    };
    let start = Start::now();
    for first in (0..ITEMS).step_by(batch) {
        let items: Vec<_> = (first..first + batch).map(item).collect();
        store.enqueue(&outbox, &items).await?;
    }
    let enqueued = start.each(ITEMS as u64);
    let start = Start::now();
    let mut done = 0;
    while done < ITEMS {
        let take = Take::new(batch, Duration::from_secs(30));
        let leased = store.lease(&outbox, &take).await?;
        let ids: Vec<_> = leased.iter().map(|leased| leased.item.id).collect();
        let acked = store.ack(&outbox, &take.token, &ids, Duration::from_secs(3600)).await?;
        done += acked.len();
    }
    Ok([("enqueue", enqueued), ("lease and ack", start.each(ITEMS as u64))])
}

/// When a measurement began, by the clock and by this process's share of the processors.
#[derive(Clone, Copy)]
struct Start {
    time: Instant,
    cpu: f64,
}

impl Start {
    fn now() -> Self {
        Self { time: Instant::now(), cpu: cpu_seconds() }
    }

    /// How many a second, and how many µs of CPU for each.
    fn each(self, count: u64) -> (f64, f64) {
        let (rate, cpu) = (count as f64 / self.time.elapsed().as_secs_f64(), cpu_seconds());
        (rate, (cpu - self.cpu) * 1e6 / count as f64)
    }
}

/// User and system time of all threads, in the kernel's hundredths of a second.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}
