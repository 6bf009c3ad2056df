//! The workers' own Python publisher, unchanged, and an ingest that is killed repeatedly.

use std::time::Duration;

use crate::ingest_support::{Ingest, Workers, entries};
use crate::support::{eventually, until_true};
use hapax_testkit::{Redis, scale};

const JOBS: usize = 30;
/// Three events of four stages, and the last one.
const EVENTS: usize = 13;

#[tokio::test(flavor = "multi_thread")]
async fn ingest_passes_the_workers_own_test() {
    let redis = Redis::start();
    let setup = Ingest::new(&redis.url(), &["--ingest", "scan:1"]);
    let _router = setup.start();
    Workers::start(&redis.url(), &["test"]).finish();
    let store = setup.open();
    until_true("the event arrives", async || !entries(&store, "job-1").await.is_empty()).await;
    let arrived = entries(&store, "job-1").await;
    assert_eq!((arrived.len(), arrived[0].seq, &*arrived[0].stage), (1, 10, "vision"));
    assert_eq!(setup.dead(), Vec::<serde_json::Value>::new());
}

async fn every_event_arrives_once(setup: Ingest, redis: &Redis) {
    let mut workers = Workers::start(&redis.url(), &["publish", &JOBS.to_string(), "4", "0.15"]);
    let mut kills = 0;
    while !workers.are_done() || kills < 3 * scale() {
        let router = setup.start();
        // Kill in the middle, a little later each time.
        tokio::time::sleep(Duration::from_millis(150 + u64::from(kills % 7) * 60)).await;
        drop(router);
        kills += 1;
    }
    workers.finish();
    let _router = setup.start();
    let store = setup.open();
    for job in (0..JOBS).map(|job| format!("job-{job}")) {
        until_true("every event arrives", async || entries(&store, &job).await.len() >= EVENTS)
            .await;
        let arrived = entries(&store, &job).await;
        let offsets: Vec<_> = arrived.iter().map(|entry| entry.at.offset).collect();
        assert_eq!(offsets, (1..=EVENTS as u64).collect::<Vec<_>>(), "{job}");
        let mut seqs: Vec<_> = arrived.iter().map(|entry| entry.seq).collect();
        assert!(arrived.last().unwrap().closes, "{job}: {seqs:?}");
        seqs.sort_unstable();
        assert_eq!(seqs, [10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42, 51], "{job}");
        let state: serde_json::Value =
            serde_json::from_str(&redis.cli(&["GET", &format!("scan:state:{job}")])).unwrap();
        assert_eq!(state["seq"], 51, "{job}");
    }
    for stream in (0..4).map(|shard| format!("scan:events:{shard}")) {
        eventually("everything is acknowledged", || {
            redis.cli(&["XPENDING", &stream, "eventrouter"]).starts_with('0')
        });
    }
    assert_eq!(setup.dead(), Vec::<serde_json::Value>::new());
}

const FLAGS: [&str; 4] = ["--ingest", "scan:4", "--ingest-deliveries", "1000"];

#[tokio::test(flavor = "multi_thread")]
async fn ingest_killed_on_sqlite_routes_each_event_once() {
    let redis = Redis::start();
    every_event_arrives_once(Ingest::new(&redis.url(), &FLAGS), &redis).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_killed_on_redis_routes_each_event_once() {
    let redis = Redis::start();
    every_event_arrives_once(Ingest::redis_alone(&redis.url(), &FLAGS), &redis).await;
}
