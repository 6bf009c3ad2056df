//! Appended events per second beside the worker script of an event bus that knows neither epochs nor
//! offsets nor conflicts, on the same server, in turns; and what each costs the server.
//!
//! `cargo run --release -p hapax-redis --example appends -- redis://127.0.0.1:6379`

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hapax_core::log::{Appended, Event, Keep};
use hapax_core::{Fingerprint, Key, Log, Tenant, Token};
use hapax_redis::{RedisConfig, RedisStore};
use redis::aio::MultiplexedConnection;

const ROUND: Duration = Duration::from_secs(2);
const ROUNDS: usize = 5;
/// How many events a job has.
const EVENTS: u64 = 5;

const WORKER_SCRIPT: &str = "
local stream_key = KEYS[1]
local state_key = KEYS[2]
local publish_key = KEYS[3]
local event_data = ARGV[1]
local state_ttl = tonumber(ARGV[2])
local publish_ttl = tonumber(ARGV[3])

if redis.call('EXISTS', publish_key) == 1 then
    return 0
end

redis.call('XADD', stream_key, 'MAXLEN', '~', '10000', '*', 'data', event_data)
redis.call('SETEX', state_key, state_ttl, event_data)
redis.call('SETEX', publish_key, publish_ttl, '1')

return 1
";

/// How many events `tasks` tasks publish in one round, per second, and the server's µs for each.
async fn rate<F>(
    tasks: usize,
    mut server: MultiplexedConnection,
    publish: impl Fn(String, u64) -> F + Clone + Send + 'static,
) -> (f64, f64)
where
    F: Future<Output = ()> + Send,
{
    let _: () = redis::cmd("FLUSHALL").query_async(&mut server).await.unwrap();
    let before = cpu(&mut server).await;
    let done = Arc::new(AtomicU64::new(0));
    let (run, started) = (Token::random(), Instant::now());
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let (done, publish, run) = (done.clone(), publish.clone(), run.clone());
            tokio::spawn(async move {
                let mut count = 0;
                while started.elapsed() < ROUND {
                    let job = format!("{}-{task}-{}", &run.as_str()[..8], count / EVENTS);
                    publish(job, 10 + count % EVENTS).await;
                    count += 1;
                }
                done.fetch_add(count, Ordering::Relaxed);
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    let count = done.load(Ordering::Relaxed) as f64;
    let rate = count / started.elapsed().as_secs_f64();
    (rate, (cpu(&mut server).await - before) * 1e6 / count)
}

async fn cpu(server: &mut MultiplexedConnection) -> f64 {
    let info: String = redis::cmd("INFO").arg("cpu").query_async(server).await.unwrap();
    let seconds = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|seconds| seconds.trim().parse().ok()).unwrap()
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}

fn median(mut rates: Vec<(f64, f64)>) -> (f64, f64) {
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    rates[rates.len() / 2]
}

fn payload(job: &str, seq: u64) -> String {
    let note = "x".repeat(60);
    format!(
        "{{\"domain\":\"scan\",\"job_id\":\"{job}\",\"stage\":\"vision\",\"seq\":{seq},\
         \"data\":{{\"note\":\"{note}\"}},\"timestamp\":\"2026-01-01T00:00:00.000000\"}}"
    )
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it is a program")]
async fn main() {
    let url = std::env::args().nth(1).unwrap_or_else(|| "redis://127.0.0.1:6379".into());
    let store = RedisStore::open(RedisConfig::new(&url).unwrap()).unwrap();
    let plain = url.split('?').next().unwrap();
    let raw = redis::Client::open(plain).unwrap();
    let raw = raw.get_multiplexed_async_connection().await.unwrap();
    let script = Arc::new(redis::Script::new(WORKER_SCRIPT));
    println!("tasks   script/s   µs each   append/s   µs each   ratio of rates, of costs");
    for tasks in [1, 64, 256] {
        let (mut scripts, mut appends) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (connection, script) = (raw.clone(), script.clone());
            let publish =
                move |job: String, seq| run_script(connection.clone(), script.clone(), job, seq);
            scripts.push(rate(tasks, raw.clone(), publish).await);
            let store = store.clone();
            let publish = move |job: String, seq| append(store.clone(), job, seq);
            appends.push(rate(tasks, raw.clone(), publish).await);
        }
        let ((s, s_cost), (a, a_cost)) = (median(scripts), median(appends));
        println!(
            "{tasks:5} {s:10.0} {s_cost:9.2} {a:10.0} {a_cost:9.2} {:15.2} {:9.2}",
            a / s,
            s_cost / a_cost
        );
    }
}

async fn run_script(
    mut connection: MultiplexedConnection,
    script: Arc<redis::Script>,
    job: String,
    seq: u64,
) {
    let shard = Fingerprint::of(&[job.as_bytes()]).as_str().as_bytes()[0] % 4;
    let added: u8 = script
        .key(format!("scan:events:{shard}"))
        .key(format!("scan:state:{job}"))
        .key(format!("published:{job}:vision:{seq}"))
        .arg(payload(&job, seq))
        .arg(3600)
        .arg(7200)
        .invoke_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(added, 1);
}

async fn append(store: RedisStore, job: String, seq: u64) {
    let payload = payload(&job, seq);
    let event = Event {
        job: Key::job(&Tenant::default(), "scan", &job).unwrap(),
        stage: "vision".into(),
        seq,
        fingerprint: Fingerprint::of(&[payload.as_bytes()]),
        payload: payload.into(),
        closes: false,
    };
    let answer = store.append(&[event], &Keep::default()).await.unwrap();
    assert!(matches!(answer[0], Appended::Published(_)), "{answer:?}");
}
