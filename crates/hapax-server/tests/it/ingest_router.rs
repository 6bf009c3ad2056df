//! `hapax serve --ingest` on a real Redis.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::ingest_support::{Setup, entries, event, eventually};
use hapax_testkit::{Redis, RedisCluster};
use serde_json::Value;

const STREAM: &str = "scan:events:0";

fn add(redis: &Redis, data: &str) -> String {
    redis.cli(&["XADD", STREAM, "*", "data", data])
}

fn state(redis: &Redis, job: &str) -> Value {
    let text = redis.cli(&["GET", &format!("scan:state:{job}")]);
    serde_json::from_str(&text).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_malformed_entry_becomes_dead_letter_alone() {
    let redis = Redis::start();
    let setup = Setup::new(&redis.url(), &["--ingest", "scan:1"]);
    for (n, wrong) in ["{\"job_id\": \"j", "{}", r#"{"job_id":"j","stage":"gap","seq":1}"#]
        .into_iter()
        .enumerate()
    {
        add(&redis, &event("good", "vision", n as u64));
        add(&redis, wrong);
    }
    redis.cli(&["XADD", STREAM, "*", "payload", "{}"]);
    add(&redis, &event("good", "vision", 3));
    add(&redis, &event("good", "vision", 3).replace("\"n\":3", "\"n\":4"));
    add(&redis, &event("good", "done", 51));
    add(&redis, &event("good", "vision", 9));
    let _router = setup.start();
    let store = setup.open().await;
    eventually("all of it is dealt with", &setup, async || setup.dead().len() == 6).await;
    let reasons: Vec<_> =
        setup.dead().iter().map(|dead| dead["reason"].as_str().unwrap().to_owned()).collect();
    for word in
        ["broken JSON", "no job_id", "reserved", "no field `data`", "event-conflict", "job-closed"]
    {
        assert_eq!(reasons.iter().filter(|reason| reason.contains(word)).count(), 1, "{reasons:?}");
    }
    let seqs: Vec<_> = entries(&store, "good").await.iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, [0, 1, 2, 3, 51]);
    eventually("all of it is acknowledged", &setup, async || {
        redis.cli(&["XPENDING", STREAM, "eventrouter"]).starts_with('0')
    })
    .await;
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
    let setup = Setup::new(&redis.url(), &flags);
    let router = setup.start();
    let store = setup.open().await;
    eventually("nothing is pending", &setup, async || {
        redis.cli(&["XPENDING", STREAM, "eventrouter"]).starts_with('0')
    })
    .await;
    eventually("poison is dead", &setup, async || setup.dead().len() == poison.len()).await;
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
    eventually("it is routed", &setup, async || {
        let mut arrived = 0;
        for n in poison {
            arrived += entries(&store, &format!("job-{n}")).await.len();
        }
        arrived == 1
    })
    .await;
    eventually("it is no dead letter any more", &setup, async || setup.dead().len() == 2).await;
    drop(router);
}

/// Between a worker's late event and the router, the state that others read goes back; the usual design's
/// router would leave it there.
#[tokio::test(flavor = "multi_thread")]
async fn hole_10_ingest_state_keeps_the_highest_seq() {
    let redis = Redis::start();
    let setup = Setup::new(&redis.url(), &["--ingest", "scan:1", "--event-lifetime", "3h"]);
    // What the workers' script does, one after the other.
    let publish = |seq: u64| {
        let event = event("job", "vision", seq);
        redis.cli(&["SETEX", "scan:state:job", "3600", &event]);
        add(&redis, &event);
    };
    publish(20);
    let router = setup.start();
    let lives = || redis.cli(&["TTL", "scan:state:job"]).parse::<u64>().unwrap();
    eventually("its lifetime is the log's", &setup, async || lives() > 3600).await;
    publish(11);
    eventually("the late one is repaired", &setup, async || state(&redis, "job")["seq"] == 20)
        .await;
    // A new process, which knows the job only from the log, repairs it too.
    router.kill();
    // Redis may still execute commands of the killed process, until it sees the disconnect.
    eventually("nobody else is there", &setup, async || {
        redis.cli(&["CLIENT", "LIST"]).lines().count() == 1
    })
    .await;
    publish(12);
    assert_eq!(state(&redis, "job")["seq"], 12);
    let _router = setup.start();
    eventually("it is repaired", &setup, async || state(&redis, "job")["seq"] == 20).await;
    assert!(lives() > 3600);
    // A higher state that a worker wrote, and that was not read yet, is never lowered.
    redis.cli(&["SETEX", "scan:state:job", "3600", &event("job", "done", 50)]);
    add(&redis, &event("job", "vision", 13));
    let store = setup.open().await;
    eventually("it is routed", &setup, async || entries(&store, "job").await.len() == 4).await;
    assert_eq!(state(&redis, "job")["seq"], 50);
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_reports_entries_trimmed_unread() {
    let redis = Redis::start();
    for n in 0..100 {
        let data = event("job", "vision", n);
        redis.cli(&["XADD", STREAM, "MAXLEN", "10", "*", "data", &data]);
    }
    let setup = Setup::new(&redis.url(), &["--ingest", "scan:1"]);
    let router = setup.start();
    let lost = format!("hapax_ingest_trimmed_unread{{stream=\"{STREAM}\"}}");
    eventually("it is counted", &setup, async || router.metric(&lost) == Some(90.0)).await;
    let store = setup.open().await;
    eventually("the rest arrives", &setup, async || entries(&store, "job").await.len() == 10).await;
    let lag = format!("hapax_ingest_lag{{stream=\"{STREAM}\"}}");
    eventually("nothing waits", &setup, async || router.metric(&lag) == Some(0.0)).await;
    assert_eq!(router.metric(&lost), Some(90.0));
    eventually("it is said", &setup, async || setup.log().contains("trimmed")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_is_red_while_ingest_reader_is_stalled() {
    let redis = Redis::start();
    let flags = ["--ingest", "scan:2", "--event-tail-limit", "1s", "--store-timeout", "400ms"];
    let setup = Setup::new(&redis.url(), &flags);
    let router = setup.start();
    eventually("it is ready", &setup, async || router.get("/readyz").0 == 200).await;
    redis.stop();
    eventually("it is red, and says why", &setup, async || {
        let (status, why) = router.get("/readyz");
        status == 503 && why.contains("scan:events:")
    })
    .await;
    redis.cont();
    eventually("it is ready again", &setup, async || router.get("/readyz").0 == 200).await;
    add(&redis, &event("job", "vision", 10));
    let store = setup.open().await;
    eventually("it goes on", &setup, async || entries(&store, "job").await.len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_publishes_routed_events_on_the_channel() {
    let redis = Redis::start();
    let flags = ["--ingest", "scan:1", "--publish-channel", "sse:{domain}:{job_id}"];
    let setup = Setup::redis_alone(&redis.url(), &flags);
    let mut listener = Command::new("redis-cli")
        .args(["-p", &redis.port().to_string(), "SUBSCRIBE", "sse:scan:job"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut heard = BufReader::new(listener.stdout.take().unwrap()).lines();
    // `subscribe`, the channel, and how many there are.
    heard.by_ref().take(3).for_each(|line| drop(line.unwrap()));
    let _router = setup.start();
    let data = event("job", "vision", 10);
    add(&redis, &data);
    let message: Vec<_> = heard.by_ref().take(3).map(|line| line.unwrap()).collect();
    assert_eq!(message, ["message", "sse:scan:job", &data]);
    listener.kill().unwrap();
    listener.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ingest_routes_streams_of_a_cluster() {
    let cluster = RedisCluster::start();
    let setup = Setup::new(&cluster.url(), &["--ingest", "scan:4", "--ingest", "chat:1"]);
    let _router = setup.start();
    let node = cluster.node(cluster.ports()[0]);
    for n in 0..40 {
        let (stream, job) = (format!("scan:events:{}", n % 4), format!("job-{n}"));
        // A cluster on a machine that stood still for seconds elects anew, and refuses meanwhile. The same
        // event twice is one.
        eventually("it is added", &setup, async || {
            let data = event(&job, "vision", 10);
            let id = node.cli(&["-c", "XADD", &stream, "*", "data", &data]);
            id.split_once('-').is_some_and(|(at, _)| at.parse::<u64>().is_ok())
        })
        .await;
    }
    let store = setup.open().await;
    for n in 0..40 {
        let job = format!("job-{n}");
        eventually("it arrives", &setup, async || entries(&store, &job).await.len() == 1).await;
        // The bus has the event before the state key shows it.
        eventually("its state is there", &setup, async || {
            let state = node.cli(&["-c", "GET", &format!("scan:state:{job}")]);
            state.contains("\"seq\":10")
        })
        .await;
    }
}

#[test]
fn ingest_needs_a_redis() {
    let setup = Setup::new("redis://127.0.0.1:1", &[]);
    let ran = setup
        .hapax()
        .args(["serve", "--listen", "127.0.0.1:0", "--store", "memory:", "--ingest", "scan:1"])
        .output()
        .unwrap();
    assert!(!ran.status.success());
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(said.contains("--ingest-from"), "{said}");
    for wrong in [&["--ingest", "scan"][..], &["--ingest", "scan:0"]] {
        let ran = setup.hapax().arg("serve").args(wrong).output().unwrap();
        assert!(!ran.status.success());
    }
}
