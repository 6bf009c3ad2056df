//! Events published per second beside plain INSERTs, and items drained through lease and ack.
//!
//! ```text
//! cargo run --release -p hapax-postgres --example postgres_flows -- postgres://… [seconds]
//! ```
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use hapax_core::log::{Event, Keep, Log};
use hapax_core::queue::{ItemId, Queue, QueueName, Take};
use hapax_core::{Fingerprint, Key, Tenant, Token};
use hapax_postgres::{Config, PostgresStore};

const POOL: usize = 8;
const PAYLOAD: &str = r#"{"domain":"scan","job_id":"job-1","stage":"vision","seq":12,"data":{"progress":50,"text":"half of it is done"},"timestamp":"2026-01-01T00:00:00Z"}"#;
const CREATE: &str = "DROP TABLE IF EXISTS plain_insert; \
     CREATE TABLE plain_insert (id text PRIMARY KEY, payload bytea)";
const INSERT: &str = "INSERT INTO plain_insert VALUES ($1, $2)";

type Failure = Box<dyn std::error::Error>;

/// Runs `operation` from so many tasks for a while; operations per second.
async fn rate<F>(
    tasks: u64,
    time: Duration,
    operation: impl Fn(u64) -> F + Clone + Send + 'static,
) -> f64
where
    F: Future<Output = ()> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|_| {
            let (count, operation) = (count.clone(), operation.clone());
            tokio::spawn(async move {
                while began.elapsed() < time {
                    operation(count.fetch_add(1, Ordering::Relaxed)).await;
                }
            })
        })
        .collect();
    for task in running {
        task.await.expect("no operation fails");
    }
    count.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

/// The `n`th event of a run: ten to a job, as a job of the seed has.
fn event(run: &str, n: u64) -> Event {
    let name = format!("{run}-{}", n / 640 * 64 + n % 64);
    Event {
        job: Key::job(&Tenant::default(), "scan", &name).expect("a key"),
        stage: "vision".into(),
        seq: n,
        fingerprint: Fingerprint::of(&[PAYLOAD.as_bytes()]),
        payload: PAYLOAD.into(),
        closes: false,
    }
}

async fn publishing(
    store: &PostgresStore,
    pool: &Pool,
    tasks: u64,
    time: Duration,
) -> Result<(), Failure> {
    let run = Token::random();
    let (own, name) = (pool.clone(), run.clone());
    let inserts = rate(tasks, time, move |n| {
        let (pool, id) = (own.clone(), format!("{}-{n}", name.as_str()));
        async move {
            let client = pool.get().await.expect("a connection");
            let insert = client.prepare_cached(INSERT).await.expect("a statement");
            client.execute(&insert, &[&id, &PAYLOAD.as_bytes()]).await.expect("a row");
        }
    })
    .await;
    let (own, name) = (store.clone(), run.clone());
    let publishes = rate(tasks, time, move |n| {
        let (store, event) = (own.clone(), event(name.as_str(), n));
        async move { drop(store.append(&[event], &Keep::default()).await.expect("an answer")) }
    })
    .await;
    println!("{tasks:>6} {inserts:>10.0} {publishes:>12.0} {:>6.2}", publishes / inserts);
    Ok(())
}

async fn draining(
    store: &PostgresStore,
    pool: &Pool,
    relays: usize,
    remember: Duration,
    rows: u32,
) -> Result<(), Failure> {
    let fill = format!(
        "TRUNCATE hapax_outbox, hapax_leases; \
         INSERT INTO hapax_outbox (topic, key, payload) \
         SELECT 'orders', 'order-' || n % 20000, convert_to('{PAYLOAD}', 'UTF8') \
         FROM generate_series(1, {rows}) n; CHECKPOINT"
    );
    for sql in fill.split("; ") {
        pool.get().await?.batch_execute(sql).await?;
    }
    let began = Instant::now();
    let running: Vec<_> = (0..relays)
        .map(|_| {
            let (store, queue) = (store.clone(), QueueName::outbox());
            tokio::spawn(async move {
                let mut done = 0;
                loop {
                    let take = Take::new(1000, Duration::from_secs(30));
                    let leased = store.lease(&queue, &take).await.expect("an answer");
                    if leased.is_empty() {
                        return done;
                    }
                    let ids: Vec<ItemId> = leased.iter().map(|leased| leased.item.id).collect();
                    let acks = store.ack(&queue, &take.token, &ids, remember).await;
                    done += acks.expect("an answer").len();
                }
            })
        })
        .collect();
    let mut done = 0;
    for relay in running {
        done += relay.await?;
    }
    let rate = done as f64 / began.elapsed().as_secs_f64();
    println!("{relays:>6} {:>10} {done:>10} {rate:>10.0}", remember.as_secs());
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: postgres_flows postgres://… [seconds]")?;
    let time = Duration::from_secs(arguments.next().map_or(Ok(3), |text| text.parse())?);
    let store = PostgresStore::open(Config::new(&url).pool(POOL))?;
    let manager = Manager::new(url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(POOL).build()?;
    pool.get().await?.batch_execute(CREATE).await?;

    println!("{:>6} {:>10} {:>12} {:>6}", "tasks", "INSERT/s", "publishes/s", "ratio");
    for tasks in [1, 8, 64, 256] {
        publishing(&store, &pool, tasks, time).await?;
    }
    println!("{:>6} {:>10} {:>10} {:>10}", "relays", "remember s", "rows", "rows/s");
    for relays in [1, 2, 4] {
        for remember in [Duration::ZERO, Duration::from_secs(3600)] {
            draining(&store, &pool, relays, remember, 200_000).await?;
        }
    }
    Ok(())
}
