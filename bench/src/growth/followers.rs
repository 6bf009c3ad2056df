//! Publishing while there are many jobs and followers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use hapax_core::bus::{Bus, FollowFrom, NewEvent, NextFrames};
use hapax_core::log::Appended;
use hapax_workload::{
    BenchError, BenchOperation, BenchPlan, BenchSpan, MarkdownTable, ProcessGroup, cell, measure,
};
use serde_json::json;
use tokio::task::JoinSet;

use super::keys::scattered;
use super::work::TASKS;
use crate::store_server::StoreServer;
use crate::{RunArgs, note, progress, say};

const DOMAIN: &str = "growth";
/// How many jobs there are, and how many of them are followed.
const SIZES: [(usize, usize); 2] = [(1_000, 100), (100_000, 10_000)];
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the last event may take to its follower.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn compare(run: &RunArgs) -> anyhow::Result<()> {
    say(format_args!(
        "## Jobs and followers\n\n{TASKS} tasks publish events to the followed jobs, each to any of \
         them; every job has a follower of its own in the same process. *delivered* is from before \
         the publish to the follower.\n"
    ))?;
    let mut table = MarkdownTable::default();
    for engine in run.engines() {
        for (jobs, followers) in SIZES {
            let server = StoreServer::start(engine)?;
            let line = measure_one(&server, jobs, followers, run.seconds).await;
            let (measured, delivered) =
                line.with_context(|| format!("{} with {jobs} jobs", engine.name()))?;
            table.row([
                ("store", engine.name().to_owned()),
                ("jobs", jobs.to_string()),
                ("followers", followers.to_string()),
                ("publishes/s", cell::rate(measured.per_second())),
                ("p99", cell::latency(measured.p99())),
                ("delivered p50", cell::latency(delivered.quantile(0.5))),
                ("delivered p99", cell::latency(delivered.quantile(0.99))),
                ("client CPU µs/op", cell::micros(Some(measured.client_cpu_each()))),
                ("server CPU µs/op", cell::micros(measured.server_cpu_each(0))),
            ]);
            progress();
        }
    }
    say(table)?;
    Ok(())
}

/// The latencies of deliveries.
#[derive(Default)]
struct Deliveries(std::sync::Mutex<Vec<u32>>, AtomicU64);

impl Deliveries {
    fn add(&self, micros: u32) {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.lock().expect("no panic while it is held").push(micros);
    }

    fn quantile(&self, share: f64) -> Duration {
        let mut all = self.0.lock().expect("no panic while it is held");
        all.sort_unstable();
        let at = (all.len() as f64 * share) as usize;
        Duration::from_micros(all.get(at).copied().unwrap_or(0).into())
    }
}

struct PublishToFollowed {
    bus: Arc<Bus>,
    followers: u64,
    base: Instant,
    published: AtomicU64,
    /// Each event has a number of its own, so that no two of a job have the same identity.
    last_number: AtomicU64,
}

impl PublishToFollowed {
    /// The event's time is its seq: the follower reads from it how long the event took. Below it is room
    /// for a number that tells events of the same microsecond apart.
    fn seq(&self) -> u64 {
        let micros = self.base.elapsed().as_micros() as u64 + 1;
        micros * 1000 + self.last_number.fetch_add(1, Ordering::Relaxed) % 1000
    }
}

#[async_trait]
impl BenchOperation for PublishToFollowed {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let job = scattered(task, turn) % self.followers;
        let event = NewEvent::new(DOMAIN, format!("job-{job}"), "step", self.seq())
            .data(json!({"status": "running", "note": "one of two photos was looked at"}));
        match self.bus.publish(&event).await {
            Ok(Appended::Published(_)) => {
                self.published.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Err(BenchError::Unexpected("a new event was published before")),
            Err(error) => Err(BenchError::Engine(error.to_string())),
        }
    }
}

async fn measure_one(
    server: &StoreServer,
    jobs: usize,
    followers: usize,
    time: Duration,
) -> anyhow::Result<(hapax_workload::Measurement, Arc<Deliveries>)> {
    let bus = Arc::new(Bus::new(server.store("followers").await?));
    create_jobs(&bus, jobs).await?;
    let (deliveries, base) = (Arc::new(Deliveries::default()), Instant::now());
    let mut following = JoinSet::new();
    for job in 0..followers {
        let follower = bus.follow(DOMAIN, &format!("job-{job}"), FollowFrom::Start).await?;
        let mut follower = follower.context("a job is closed")?;
        let deliveries = deliveries.clone();
        following.spawn(async move {
            while let NextFrames::Frames(frames) = follower.next().await {
                for frame in frames {
                    // The first event of a job has no time.
                    if let Some(sent) = sent_micros(frame.encoded().json()).filter(|at| *at > 0) {
                        let micros = (base.elapsed().as_micros() as u64).saturating_sub(sent - 1);
                        deliveries.add(u32::try_from(micros).unwrap_or(u32::MAX));
                    }
                }
            }
        });
    }
    let operation = Arc::new(PublishToFollowed {
        bus,
        followers: followers as u64,
        base,
        published: AtomicU64::new(0),
        last_number: AtomicU64::new(0),
    });
    let servers: [ProcessGroup; 1] = [server.processes()];
    let plan = BenchPlan::new(TASKS, BenchSpan::Time(time)).warm_up(WARM_UP).servers(servers);
    let measured = measure(operation.clone(), &plan).await?;
    let since = Instant::now();
    while deliveries.1.load(Ordering::Relaxed) < operation.published.load(Ordering::Relaxed) {
        ensure!(since.elapsed() < TIMEOUT, "events are missing");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok((measured, deliveries))
}

/// The time in an event's seq; 0 for the first event of a job.
fn sent_micros(json: &[u8]) -> Option<u64> {
    let event: serde_json::Value = serde_json::from_slice(json).ok()?;
    event.get("seq")?.as_u64().map(|seq| seq / 1000)
}

async fn create_jobs(bus: &Arc<Bus>, jobs: usize) -> anyhow::Result<()> {
    const AT_ONCE: usize = 256;
    let mut tasks = JoinSet::new();
    for part in 0..AT_ONCE {
        let bus = bus.clone();
        tasks.spawn(async move {
            for job in (part..jobs).step_by(AT_ONCE) {
                let event = NewEvent::new(DOMAIN, format!("job-{job}"), "begun", 1);
                let appended = bus.publish(&event).await?;
                ensure!(matches!(appended, Appended::Published(_)), "a new job is not new");
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    note(format_args!("made {jobs} jobs"));
    Ok(())
}
