//! `hapax serve --ingest` on a real Redis.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::ingest_support::{Ingest, entries, event};
use crate::support::server::Setup;
use crate::support::{KillOnDrop, eventually, until_true};
use hapax_testkit::{Redis, RedisCluster};
use serde_json::Value;

const STREAM: &str = "scan:events:0";

fn add(redis: &Redis, data: &str) -> String {
    redis.cli(&["XADD", STREAM, "*", "data", data])
}

/// Waits until every entry that was read is acknowledged.
fn all_acknowledged(redis: &Redis) {
    eventually("nothing is pending", || {
        redis.cli(&["XPENDING", STREAM, "eventrouter"]).starts_with('0')
    });
}

fn state(redis: &Redis, job: &str) -> Value {
    let text = redis.cli(&["GET", &format!("scan:state:{job}")]);
    serde_json::from_str(&text).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_malformed_entry_becomes_dead_letter_alone() {
    let redis = Redis::start();
    let setup = Ingest::new(&redis.url(), &["--ingest", "scan:1"]);
    let wrong = ["{\"job_id\": \"j", "{}", r#"{"job_id":"j","stage":"gap","seq":1}"#];
    for (n, wrong) in (0..).zip(wrong) {
        add(&redis, &event("good", "vision", n));
        add(&redis, wrong);
    }
    redis.cli(&["XADD", STREAM, "*", "payload", "{}"]);
    add(&redis, &event("good", "vision", 3));
    add(&redis, &event("good", "vision", 3).replace("\"n\":3", "\"n\":4"));
    add(&redis, &event("good", "done", 51));
    add(&redis, &event("good", "vision", 9));
    let _router = setup.start();
    let store = setup.open();
    eventually("all of it is dealt with", || setup.dead().len() == 6);
    let reasons: Vec<_> =
        setup.dead().iter().map(|dead| dead["reason"].as_str().unwrap().to_owned()).collect();
    for word in
        ["broken JSON", "no job_id", "reserved", "no field `data`", "event-conflict", "job-closed"]
    {
        assert_eq!(reasons.iter().filter(|reason| reason.contains(word)).count(), 1, "{reasons:?}");
    }
    let seqs: Vec<_> = entries(&store, "good").await.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [0, 1, 2, 3, 51]);
    eventually("all of it is acknowledged", || {
        redis.cli(&["XPENDING", STREAM, "eventrouter"]).starts_with('0')
    });
}

/// A router that reclaims only one page, or retries poison for ever, never finishes this: three pages
/// of a dead consumer, some of them delivered many times.
#[tokio::test(flavor = "multi_thread")]
async fn hole_17_all_pages_are_reclaimed_and_poison_is_buried() {
    let redis = Redis::start();
    redis.cli(&["XGROUP", "CREATE", STREAM, "eventrouter", "0", "MKSTREAM"]);
    let lines: Vec<_> = (0..500)
        .map(|n| format!("XADD {STREAM} * data '{}'", event(&format!("job-{n}"), "vision", 10)))
        .collect();
    let ids = redis.cli_lines(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let ids: Vec<_> = ids.lines().collect();
    assert_eq!(ids.len(), 500);
    let read = ["XREADGROUP", "GROUP", "eventrouter", "dead", "COUNT", "500", "STREAMS", STREAM];
    redis.cli(&[&read[..], &[">"]].concat());
    let poison = [7, 250, 499];
    for n in poison {
        let claim = ["XCLAIM", STREAM, "eventrouter", "dead", "0", ids[n], "RETRYCOUNT", "10"];
        redis.cli(&claim);
    }
    let flags = ["--ingest", "scan:1", "--ingest-reclaim", "300ms"];
    let setup = Ingest::new(&redis.url(), &flags);
    let router = setup.start();
    let store = setup.open();
    all_acknowledged(&redis);
    eventually("poison is dead", || setup.dead().len() == poison.len());
    for n in 0..500 {
        let arrived = entries(&store, &format!("job-{n}")).await.len();
        assert_eq!(arrived, usize::from(!poison.contains(&n)), "job-{n}");
    }
    for dead in setup.dead() {
        assert!(dead["reason"].as_str().unwrap().contains("delivered 11 times"), "{dead}");
    }
    // A requeued dead letter is routed.
    let id = setup.dead()[0]["id"].as_str().unwrap().to_owned();
    setup.queue(&["requeue", "ingest", &id]);
    until_true("it is routed", async || {
        let mut arrived = 0;
        for n in poison {
            arrived += entries(&store, &format!("job-{n}")).await.len();
        }
        arrived == 1
    })
    .await;
    eventually("it is no dead letter any more", || setup.dead().len() == 2);
    drop(router);
}

/// Between a worker's late event and the router, the state that others read goes back; the usual design's
/// router would leave it there.
#[tokio::test(flavor = "multi_thread")]
async fn hole_10_ingest_state_keeps_the_highest_seq() {
    let redis = Redis::start();
    let setup = Ingest::new(&redis.url(), &["--ingest", "scan:1", "--event-retention", "3h"]);
    // The steps of the workers' script, one after the other.
    let publish = |seq: u64| {
        let event = event("job", "vision", seq);
        redis.cli(&["SETEX", "scan:state:job", "3600", &event]);
        add(&redis, &event);
    };
    publish(20);
    let router = setup.start();
    let lives = || redis.cli(&["TTL", "scan:state:job"]).parse::<u64>().unwrap();
    eventually("its lifetime is the log's", || lives() > 3600);
    publish(11);
    eventually("the late one is repaired", || state(&redis, "job")["seq"] == 20);
    // A new process, which knows the job only from the log, repairs it too.
    drop(router);
    // Redis may still execute commands of the killed process, until it sees the disconnect.
    eventually("nobody else is there", || redis.cli(&["CLIENT", "LIST"]).lines().count() == 1);
    publish(12);
    assert_eq!(state(&redis, "job")["seq"], 12);
    let _router = setup.start();
    eventually("it is repaired", || state(&redis, "job")["seq"] == 20);
    assert!(lives() > 3600);
    // A higher state that a worker wrote, and that was not read yet, is never lowered.
    redis.cli(&["SETEX", "scan:state:job", "3600", &event("job", "done", 50)]);
    add(&redis, &event("job", "vision", 13));
    let store = setup.open();
    until_true("it is routed", async || entries(&store, "job").await.len() == 4).await;
    assert_eq!(state(&redis, "job")["seq"], 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_reports_entries_trimmed_unread() {
    let redis = Redis::start();
    for n in 0..100 {
        let data = event("job", "vision", n);
        redis.cli(&["XADD", STREAM, "MAXLEN", "10", "*", "data", &data]);
    }
    let setup = Ingest::new(&redis.url(), &["--ingest", "scan:1"]);
    let router = setup.start();
    let lost = format!("hapax_ingest_trimmed_unread{{stream=\"{STREAM}\"}} 90\n");
    router.counts(&lost);
    let store = setup.open();
    until_true("the rest arrives", async || entries(&store, "job").await.len() == 10).await;
    router.counts(&format!("hapax_ingest_lag{{stream=\"{STREAM}\"}} 0\n"));
    assert!(router.metrics().contains(&lost));
    eventually("it is said", || router.log().contains("trimmed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_red_while_ingest_reader_is_stalled() {
    let redis = Redis::start();
    let flags = ["--ingest", "scan:2", "--event-tail-limit", "1s", "--store-timeout", "400ms"];
    let setup = Ingest::new(&redis.url(), &flags);
    let router = setup.start();
    router.is_ready(true);
    redis.stop();
    eventually("it is red, and says why", || {
        let ready = router.get("/readyz").send();
        ready.status == 503 && ready.text().contains("scan:events:")
    });
    redis.cont();
    router.is_ready(true);
    add(&redis, &event("job", "vision", 10));
    let store = setup.open();
    until_true("it goes on", async || entries(&store, "job").await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_publishes_routed_events_on_the_channel() {
    let redis = Redis::start();
    let flags = ["--ingest", "scan:1", "--publish-channel", "sse:{domain}:{job_id}"];
    let setup = Ingest::redis_alone(&redis.url(), &flags);
    let mut listener = Command::new("redis-cli");
    listener.args(["-p", &redis.port().to_string(), "SUBSCRIBE", "sse:scan:job"]);
    let mut listener = KillOnDrop(listener.stdout(Stdio::piped()).spawn().unwrap());
    let mut heard = BufReader::new(listener.0.stdout.take().unwrap()).lines();
    // `subscribe`, the channel, and how many there are.
    heard.by_ref().take(3).for_each(|line| drop(line.unwrap()));
    let _router = setup.start();
    let data = event("job", "vision", 10);
    add(&redis, &data);
    let message: Vec<_> = heard.by_ref().take(3).map(|line| line.unwrap()).collect();
    assert_eq!(message, ["message", "sse:scan:job", &data]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_routes_streams_of_a_cluster() {
    let cluster = RedisCluster::start();
    let setup = Ingest::new(&cluster.url(), &["--ingest", "scan:4", "--ingest", "chat:1"]);
    let _router = setup.start();
    let node = cluster.node(cluster.ports()[0]);
    for n in 0..40 {
        let (stream, job) = (format!("scan:events:{}", n % 4), format!("job-{n}"));
        // A cluster on a machine that stood still for seconds elects anew, and refuses meanwhile. The same
        // event twice is one.
        until_true("it is added", async || {
            let data = event(&job, "vision", 10);
            let id = node.cli(&["-c", "XADD", &stream, "*", "data", &data]);
            id.split_once('-').is_some_and(|(at, _)| at.parse::<u64>().is_ok())
        })
        .await;
    }
    let store = setup.open();
    for n in 0..40 {
        let job = format!("job-{n}");
        until_true("it arrives", async || entries(&store, &job).await.len() == 1).await;
        // The bus has the event before the state key shows it.
        until_true("its state is there", async || {
            let state = node.cli(&["-c", "GET", &format!("scan:state:{job}")]);
            state.contains("\"seq\":10")
        })
        .await;
    }
}

#[test]
fn ingest_needs_a_redis() {
    let said = Setup::memory().flags(&["--ingest", "scan:1"]).refused();
    assert!(said.contains("--ingest-from"), "{said}");
    for wrong in ["scan", "scan:0"] {
        Setup::new().flags(&["--ingest", wrong]).refused();
    }
}
