//! The storm: publishers, clients and an observer, while something is being killed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::soak_bus::checker::{At, History, Losses, Name, violations};
use crate::soak_bus::publish::{publish, state};
use crate::soak_bus::random::Random;
use crate::soak_bus::sse::follow;

const PUBLISHERS: usize = 8;
const CLIENTS: usize = 100;
const JOBS: usize = 4;
/// Nothing here takes this long; a run that does has lost an event.
const LIMIT: Duration = Duration::from_secs(240);

/// Runs until every client has seen the end; returns the violations.
///
/// `kill` is called again and again while events are published.
pub(crate) async fn storm(
    nodes: Vec<String>,
    losses: Losses,
    mut kill: impl FnMut() + Send + 'static,
) {
    let calm = Arc::new(AtomicBool::new(false));
    let killer = std::thread::spawn({
        let calm = calm.clone();
        move || {
            let mut random = Random::new(99);
            let mut kills = 0;
            while !calm.load(Ordering::SeqCst) {
                let since = Instant::now();
                kill();
                kills += 1;
                // Even if a start takes long, half of the time remains for progress.
                let pause = Duration::from_millis(100 + random.below(400) as u64);
                std::thread::sleep(pause.max(since.elapsed()));
            }
            // `kill` owns the nodes, which are needed until every client has seen the end.
            (kills, kill)
        }
    });
    let histories = tokio::time::timeout(LIMIT, weather(nodes, calm)).await;
    let histories = histories.expect("every client sees the end");
    let (kills, _kill) = killer.join().expect("the killer lives");
    assert!(kills > 0);
    for (job, history) in histories {
        let wrong = violations(&history, losses);
        let some = &wrong[..wrong.len().min(20)];
        assert!(wrong.is_empty(), "{job}: {} wrong: {some:#?}", wrong.len());
        assert!(history.clients.iter().all(|saw| saw.len() > history.acknowledged.len() / 3));
    }
}

async fn weather(nodes: Vec<String>, calm: Arc<AtomicBool>) -> HashMap<String, History> {
    let jobs: Vec<String> = (0..JOBS).map(|n| format!("job-{n}")).collect();
    let mut clients = JoinSet::new();
    for n in 0..CLIENTS {
        let (nodes, job) = (nodes.clone(), jobs[n % JOBS].clone());
        clients.spawn(
            async move { (job.clone(), follow(nodes, job, Random::new(n as u64 + 1)).await) },
        );
    }
    let observer = tokio::spawn(observe(nodes.clone(), jobs.clone(), calm.clone()));
    let mut publishers = JoinSet::new();
    for n in 0..PUBLISHERS {
        publishers.spawn(produce(nodes.clone(), jobs.clone(), n));
    }
    let mut acknowledged = publishers.join_all().await.concat();
    calm.store(true, Ordering::SeqCst);
    for job in &jobs {
        let last = ("done".to_owned(), 1_000_000);
        let heard = publish(&nodes, job, &last, true, &mut Random::new(7)).await;
        acknowledged.push((job.clone(), heard));
    }
    let mut histories: HashMap<String, History> = HashMap::new();
    for (job, ack) in acknowledged {
        histories.entry(job).or_default().acknowledged.push(ack);
    }
    for (job, seen) in observer.await.expect("the observer lives") {
        histories.entry(job).or_default().states.push(seen);
    }
    for (job, saw) in clients.join_all().await {
        histories.entry(job).or_default().clients.push(saw);
    }
    histories
}

/// One publisher: its own events, nearly in order, and a third of its neighbour's.
async fn produce(nodes: Vec<String>, jobs: Vec<String>, me: usize) -> Vec<(String, (Name, At))> {
    let mut random = Random::new(me as u64 + 1000);
    let events = 20 * hapax_testkit::scale() as u64;
    let of = |who: usize| {
        let jobs = jobs.clone();
        (1..=events).flat_map(move |n| {
            let name = (format!("stage-{who}"), n * PUBLISHERS as u64 + who as u64);
            jobs.clone().into_iter().map(move |job| (job, name.clone()))
        })
    };
    let mut work: Vec<_> = of(me).chain(of((me + 1) % PUBLISHERS).step_by(3)).collect();
    random.shuffle_nearly(&mut work);
    let mut heard = Vec::new();
    for (job, name) in work {
        let ack = publish(&nodes, &job, &name, false, &mut random).await;
        heard.push((job, ack));
        tokio::time::sleep(Duration::from_millis(random.below(30) as u64)).await;
    }
    heard
}

/// Watches the jobs' states, one request at a time, so that their order is known.
async fn observe(
    nodes: Vec<String>,
    jobs: Vec<String>,
    calm: Arc<AtomicBool>,
) -> Vec<(String, (At, u64))> {
    let mut seen = Vec::new();
    let mut random = Random::new(5);
    while !calm.load(Ordering::SeqCst) {
        for job in &jobs {
            let node = &nodes[random.below(nodes.len())];
            seen.extend(state(node, job).await.map(|state| (job.clone(), state)));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    seen
}
