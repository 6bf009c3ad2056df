//! What this machine can do: durable claims of fresh keys by 1 and 64 tasks, replays of settled
//! ones, against raw inserts of the same row. Trust the ratios, not the rates.
//!
//! `cargo run --release -p hapax-sqlite --example throughput [folder]`

#![expect(clippy::print_stdout, reason = "a measurement is for reading")]

use std::path::Path;
use std::time::{Duration, Instant};

use hapax_core::{Ask, Claimed, Claims, Fingerprint, Key, Tenant};
use hapax_sqlite::{SqliteStore, migrate};
use rusqlite::{Connection, params};

const FOR: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let parent = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let folder = tempfile::tempdir_in(parent)?;
    for per_commit in [1, 64] {
        let rate = raw(&folder.path().join(format!("raw{per_commit}.db")), per_commit)?;
        println!("raw inserts, {per_commit:>3} a commit: {rate:>8.0}/s");
    }
    let store = SqliteStore::open(folder.path().join("hapax.db"))?;
    for tasks in [1, 64] {
        report("claims", tasks, &store, load(&store, tasks, |task, n| format!("{task}-{n}")).await);
    }
    settle_all(&store).await?;
    for tasks in [1, 64] {
        report("replays", tasks, &store, load(&store, tasks, |_, n| format!("s{}", n % 512)).await);
    }
    Ok(())
}

/// The least that a durable claim costs: one row of the same table.
fn raw(path: &Path, per_commit: u64) -> rusqlite::Result<f64> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    migrate(&connection).expect("a new file");
    let start = Instant::now();
    let mut rows = 0_u64;
    while start.elapsed() < FOR {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for _ in 0..per_commit {
            rows += 1;
            // Spread over the index as the keys of many tasks are.
            let name = format!("{}-{rows}", rows % 64);
            connection
                .prepare_cached(
                    "INSERT INTO hapax_claims VALUES ('default', 'command', 'bench', ?1, 0, ?2, 1, \
                     '0123456789abcdef0123456789abcdef', ?3, ?2, ?2, 86400000, ?2, x'')",
                )?
                .execute(params![name, rows as i64, fingerprint().as_str()])?;
        }
        connection.execute_batch("COMMIT")?;
    }
    Ok(rows as f64 / start.elapsed().as_secs_f64())
}

async fn settle_all(store: &SqliteStore) -> Result<(), Box<dyn std::error::Error>> {
    for n in 0..512 {
        let (key, ask) = question(&format!("s{n}"));
        if let Claimed::Granted { ticket, .. } = store.claim(&key, &ask).await? {
            let _ = store.settle(&key, &ticket.token, vec![b'x'; 200].into()).await?;
        }
    }
    Ok(())
}

fn fingerprint() -> Fingerprint {
    Fingerprint::of(&[b"bench"])
}

fn question(name: &str) -> (Key, Ask) {
    let key = Key::command(&Tenant::default(), "bench", name).expect("a short name");
    let ask = Ask::new(Duration::from_secs(30)).retention(Duration::from_secs(86_400));
    (key, ask.fingerprint(Some(fingerprint())))
}

/// The latencies of all claims, in order of size, and how many commits they took.
async fn load(
    store: &SqliteStore,
    tasks: u64,
    name: fn(u64, u64) -> String,
) -> (Vec<Duration>, u64) {
    let before = store.commits();
    let start = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut times = Vec::new();
                while start.elapsed() < FOR {
                    let n = times.len() as u64;
                    let (key, ask) = question(&name(task + 1000 * tasks, n));
                    let asked = Instant::now();
                    store.claim(&key, &ask).await.expect("an answer");
                    times.push(asked.elapsed());
                }
                times
            })
        })
        .collect();
    let mut times = Vec::new();
    for task in running {
        times.extend(task.await.expect("no panic"));
    }
    times.sort_unstable();
    (times, store.commits() - before)
}

fn report(what: &str, tasks: u64, store: &SqliteStore, (times, commits): (Vec<Duration>, u64)) {
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let rate = times.len() as f64 / FOR.as_secs_f64();
    println!(
        "{what:>7}, {tasks:>2} tasks: {rate:>8.0}/s  p50 {:?}  p99 {:?}  max {:?}  {commits} commits of {}",
        at(0.5),
        at(0.99),
        at(1.0),
        store.commits(),
    );
}
