//! Lock and release pairs per second against raw `SET NX PX` and `DEL`, over the same kind of
//! connection to the same server, in turns.
//!
//! `cargo run --release -p hapax-redis --example throughput -- redis://127.0.0.1:6379`

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax_core::{Ask, Claimed, Claims, GiveBack, Key, Step, Tenant};
use hapax_redis::{RedisConfig, RedisStore};

const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 5;

/// How many pairs `tasks` tasks get done in one round, per second.
async fn rate<F>(tasks: usize, pair: impl Fn(usize, u64) -> F + Clone + Send + 'static) -> f64
where
    F: Future<Output = ()> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (done, pair) = (done.clone(), pair.clone());
            tokio::spawn(async move {
                let mut round = 0;
                while started.elapsed() < ROUND {
                    pair(task, round).await;
                    round += 1;
                }
                done.fetch_add(round, Ordering::Relaxed);
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is a program")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let store = RedisStore::open(RedisConfig::new(&url).unwrap()).unwrap();
    let raw = redis::Client::open(url).unwrap();
    let raw = raw.get_multiplexed_async_connection().await.unwrap();
    println!("tasks   raw pairs/s   hapax pairs/s   ratio");
    for tasks in [1, 64, 256] {
        let (mut raws, mut hapaxes) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let connection = raw.clone();
            raws.push(rate(tasks, move |task, _| raw_pair(connection.clone(), task)).await);
            let store = store.clone();
            hapaxes.push(rate(tasks, move |task, _| hapax_pair(store.clone(), task)).await);
        }
        let (raw, hapax) = (median(raws), median(hapaxes));
        println!("{tasks:5} {raw:13.0} {hapax:15.0} {:7.2}", hapax / raw);
    }
}

async fn raw_pair(mut connection: redis::aio::MultiplexedConnection, task: usize) {
    let key = format!("raw:{{default:lock::{task}}}");
    let token = hapax_core::Token::random();
    let mut set = redis::cmd("SET");
    set.arg(&key).arg(token.as_str()).arg("NX").arg("PX").arg(30_000);
    let _: () = set.query_async(&mut connection).await.unwrap();
    let _: () = redis::cmd("DEL").arg(&key).query_async(&mut connection).await.unwrap();
}

async fn hapax_pair(store: RedisStore, task: usize) {
    let key = Key::lock(&Tenant::default(), &task.to_string()).unwrap();
    let ask = Ask::new(Duration::from_secs(30));
    let Claimed::Granted { ticket, .. } = store.claim(&key, &ask).await.unwrap() else { panic!() };
    let step = store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(step, Step::Done(ticket.fence));
}
