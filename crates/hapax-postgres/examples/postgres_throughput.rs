//! Durable claims per second, against one INSERT per statement on the same server and pool.
//!
//! ```text
//! cargo run --release -p hapax-postgres --example postgres_throughput -- postgres://… [seconds]
//! ```
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_postgres::{Manager, Pool};
use hapax_core::{Ask, Claimed, Claims, Key, Tenant, Token};
use hapax_postgres::{Config, PostgresStore};

const POOL: usize = 8;
const LONG: Duration = Duration::from_secs(3600);
const CREATE: &str = "DROP TABLE IF EXISTS plain_insert; \
     CREATE TABLE plain_insert (id text PRIMARY KEY, token text, lease_end bigint)";
const INSERT: &str = "INSERT INTO plain_insert VALUES ($1, $2, 0) ON CONFLICT DO NOTHING";

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

fn key(run: &str, n: u64) -> Key {
    Key::command(&Tenant::default(), "throughput", &format!("{run}-{n}")).expect("a key")
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("usage: postgres_throughput postgres://… [seconds]")?;
    let time = Duration::from_secs(arguments.next().map_or(Ok(3), |text| text.parse())?);
    let store = PostgresStore::open(Config::new(&url).pool(POOL))?;
    let manager = Manager::new(url.parse()?, tokio_postgres::NoTls);
    let pool = Pool::builder(manager).max_size(POOL).build()?;
    pool.get().await?.batch_execute(CREATE).await?;
    let ask = Ask::new(LONG).retention(LONG);

    println!(
        "{:>6} {:>10} {:>10} {:>6} {:>12} {:>10}",
        "tasks", "INSERT/s", "claims/s", "ratio", "claim+settle", "replays/s"
    );
    for tasks in [1, 8, 64, 256] {
        let run = Token::random();
        let (own, name) = (pool.clone(), run.clone());
        let inserts = rate(tasks, time, move |n| {
            let (pool, id) = (own.clone(), format!("{}-{n}", name.as_str()));
            async move {
                let client = pool.get().await.expect("a connection");
                let insert = client.prepare_cached(INSERT).await.expect("a statement");
                client.execute(&insert, &[&id, &"token"]).await.expect("a row");
            }
        })
        .await;
        let (own, name, fresh) = (store.clone(), run.clone(), ask.clone());
        let claims = rate(tasks, time, move |n| {
            let (store, key, ask) = (own.clone(), key(name.as_str(), n), fresh.again());
            async move { drop(store.claim(&key, &ask).await.expect("an answer")) }
        })
        .await;
        let (own, name, fresh) = (store.clone(), Token::random(), ask.clone());
        let settled = name.clone();
        let pairs = rate(tasks, time, move |n| {
            let (store, key, ask) = (own.clone(), key(name.as_str(), n), fresh.again());
            async move {
                let Claimed::Granted { ticket, .. } =
                    store.claim(&key, &ask).await.expect("an answer")
                else {
                    panic!("a fresh key is granted")
                };
                let _ = store.settle(&key, &ticket.token, "value".into()).await.expect("an answer");
            }
        })
        .await;
        let (own, fresh) = (store.clone(), ask.clone());
        let replays = rate(tasks, time, move |n| {
            let (store, key, ask) = (own.clone(), key(settled.as_str(), n % 500), fresh.again());
            async move { drop(store.claim(&key, &ask).await.expect("an answer")) }
        })
        .await;
        let ratio = claims / inserts;
        println!(
            "{tasks:>6} {inserts:>10.0} {claims:>10.0} {ratio:>6.1} {pairs:>12.0} {replays:>10.0}"
        );
    }
    Ok(())
}
