//! Events on real stores, with two nodes on each.

use hapax_testkit::{Redis, TcpProxy};
use serde_json::{Value, json};

use crate::http::events_client::{Event, Listener, WAYS};
use crate::support::eventually;
use crate::support::server::{Server, Setup};
use crate::support::store::{TestStore, tests_on_stores};

fn nodes(url: &str) -> [Server; 2] {
    limited_nodes(url, "20s")
}

/// Starts nodes with this store timeout.
fn limited_nodes(url: &str, limit: &str) -> [Server; 2] {
    [(), ()].map(|()| {
        let server = Setup::on(url).flags(&["--store-timeout", limit]).start();
        server.is_ready(true);
        server
    })
}

/// Reconnects, as a browser does, if the store was slow when the stream began.
fn follow(server: &Server, way: &str, job: &str, headers: &[(&str, &str)]) -> Listener {
    let mut stream = None;
    eventually("the store answers", || {
        stream.insert(server.follow_with(way, job, "", headers)).status != 503
    });
    stream.unwrap()
}

fn event(job: &str, seq: u64) -> Value {
    json!({"domain": "scan", "job_id": job, "stage": "vision", "seq": seq, "data": {"n": seq}})
}

/// Publishes again if the store took longer than its timeout; the duplicate is recognised.
fn publish(server: &Server, job: &str, seq: u64) {
    let event = event(job, seq);
    eventually("the event is taken", || server.post("/v1/events").json(&event).status() < 300);
}

/// Publishes on one node and follows on the other, through reconnects, a duplicate and the end.
async fn one_node_follows_what_the_other_publishes(store: TestStore) {
    let [one, other] = nodes(&store.url());
    for way in WAYS {
        let job = format!("job-{}", &way[5..]);
        let mut waiting = follow(&other, way, &job, &[]);
        let (_, epoch) = one.publish(&job, "vision", 10);
        let first = waiting.expect();
        assert_eq!((first.id(), first.name.as_str()), (format!("{epoch}-1").as_str(), "vision"));
        for seq in 11..=15 {
            one.publish(&job, "vision", seq);
        }
        let live: Vec<_> = waiting.take(5).iter().map(Event::offset).collect();
        assert_eq!(live, [2, 3, 4, 5, 6]);
        let again = other.post("/v1/events").json(event(&job, 12)).send();
        assert_eq!((again.status, &again.json()["offset"]), (200, &3.into()));
        other.finish(&job);
        assert_eq!(waiting.expect().name, "done");
        assert_eq!(waiting.next(), None);
        let resumed = follow(&one, way, &job, &[("Last-Event-ID", first.id())]).rest();
        assert_eq!(resumed.iter().map(Event::offset).collect::<Vec<_>>(), [2, 3, 4, 5, 6, 7]);
        let end = format!("{epoch}-7");
        assert_eq!(follow(&one, way, &job, &[("Last-Event-ID", &end)]).status, 204);
        assert_eq!(one.get(&format!("/v1/jobs/scan/{job}")).send().json()["closed"], true);
    }
}

tests_on_stores! {
    one_node_follows_what_the_other_publishes;
    event_nodes_share_a_sqlite_file on sqlite,
    event_nodes_share_a_redis on redis,
    event_nodes_share_a_postgres on postgres,
}

#[test]
fn stream_outlives_a_hanging_store() {
    let redis = Redis::start();
    let [server, _] = limited_nodes(&redis.url(), "2s");
    publish(&server, "job-1", 10);
    let mut streams = WAYS.map(|way| follow(&server, way, "job-1", &[]));
    streams.iter_mut().for_each(|stream| drop(stream.expect()));
    redis.stop();
    server.is_ready(false);
    server.get("/v1/jobs/scan/job-1").is(503, "store-unavailable");
    server.get("/v1/jobs/scan/other/events").is(503, "store-unavailable");
    redis.cont();
    server.is_ready(true);
    publish(&server, "job-1", 11);
    for stream in &mut streams {
        assert_eq!(stream.expect().offset(), 2);
    }
}

#[test]
fn failover_gap_reaches_only_followers_of_lost_entries() {
    for (lost, arguments) in [
        (false, ["--appendonly", "yes", "--appendfsync", "always"]),
        (true, ["--appendonly", "no", "--save", ""]),
    ] {
        let redis = Redis::with(&arguments);
        let [server, _] = nodes(&redis.url());
        let (_, old) = server.publish("job-1", "vision", 10);
        let mut streams = WAYS.map(|way| follow(&server, way, "job-1", &[]));
        streams.iter_mut().for_each(|stream| drop(stream.expect()));
        redis.kill();
        redis.restart();
        // Readiness may still be from before the kill, so do not use it.
        publish(&server, "probe", 1);
        let (offset, new) = server.publish("job-1", "vision", 11);
        assert!(new > old && offset == if lost { 1 } else { 2 });
        for stream in &mut streams {
            if lost {
                stream.expect_gap();
            }
            assert_eq!(stream.expect().id(), format!("{new}-{offset}"));
        }
    }
}

/// The bytes that Redis has sent to all clients so far.
fn sent_bytes(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "stats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("total_net_output_bytes:"));
    line.expect("a counter").trim().parse().unwrap()
}

#[test]
fn fault_05_replay_of_large_events_reads_them_once() {
    let redis = Redis::with(&["--appendonly", "no", "--save", ""]);
    // Polls and readiness checks would be counted too.
    let server = Setup::on(&redis.url()).flags(&["--event-poll", "1h"]).start();
    let large = json!("x".repeat(200_000));
    for seq in 1..=12 {
        server.publish_data("job-1", "vision", seq, &large);
    }
    server.finish("job-1");
    let before = sent_bytes(&redis);
    let events = server.follow(WAYS[0], "job-1", "").rest();
    assert_eq!(events.len(), 13);
    let read = sent_bytes(&redis) - before;
    // Every event was read once, and the first one for the ring too.
    assert!(read <= 13 * 12 * 200_000 / 10, "{read} bytes read");
}

#[test]
fn fault_32_last_seq_of_a_long_job_is_found_over_a_slow_line() {
    let redis = Redis::with(&["--appendonly", "no", "--save", ""]);
    let line = TcpProxy::to(redis.port());
    let server = Setup::on(&format!("redis://127.0.0.1:{}", line.port())).start();
    for page in 0..3 {
        let events: Vec<_> = (1..=1000).map(|i| event("job-1", page * 1000 + i)).collect();
        assert_eq!(server.post("/v1/events").json(json!(events)).status(), 200);
    }
    line.delay_answers(std::time::Duration::from_millis(100));
    // A stalled machine may be too slow for the store's timeout once, not always.
    eventually("the event is found", || {
        let mut stream = server.follow(WAYS[0], "job-1", "?last_seq=1500");
        stream.status == 200 && stream.expect().offset() == 1501
    });
}

#[test]
fn stalled_tail_shows_in_readiness_and_metrics() {
    let redis = Redis::start();
    let flags = ["--event-tail-limit", "300ms", "--event-poll", "50ms"];
    // Reports to operators would have tails of their own.
    let quiet = ["--report-interval", "0s"];
    let server = Setup::on(&redis.url()).flags(&flags).flags(&quiet).start();
    server.publish("job-1", "vision", 10);
    let mut stream = follow(&server, WAYS[0], "job-1", &[]);
    assert_eq!(stream.expect().offset(), 1);
    // The store answers; only the tail cannot be read.
    let tail = redis.cli(&["KEYS", "*tail*"]);
    redis.cli(&["RENAME", &tail, "elsewhere"]);
    redis.cli(&["SET", &tail, "nothing of ours"]);
    eventually("it is not ready", || {
        let ready = server.get("/readyz").send();
        ready.status == 503 && ready.text().contains("tail")
    });
    // On a stalled machine the tail may be old before its first read has failed.
    server.counts("hapax_bus_read_failures_total{what=\"tail\"}");
    redis.cli(&["RENAME", "elsewhere", &tail]);
    server.is_ready(true);
    server.publish("job-1", "vision", 11);
    assert_eq!(stream.expect().offset(), 2);
}

#[test]
fn hole_11_killed_server_publishes_event_whole_or_not_at_all() {
    // In the usual design the marker, the stream and the state are three steps of two processes: killed in
    // between, the retry finds the marker, and the event is nowhere.
    let store = TestStore::sqlite();
    let events = 20 * u64::from(hapax_testkit::scale());
    for round in 0..3 {
        let server = Setup::on(&store.url()).start();
        for seq in round * events..(round + 1) * events {
            // Only the last events are in flight when the server is killed.
            let sent = server.post("/v1/events").json(event("j", seq)).begin();
            if seq % events < events - 5 {
                assert_eq!(sent.answer().status, 201);
            }
        }
        drop(server);
    }
    let server = Setup::on(&store.url()).start();
    for seq in 0..3 * events {
        assert!([200, 201].contains(&server.post("/v1/events").json(event("j", seq)).status()));
    }
    server.finish("j");
    let seen = follow(&server, WAYS[0], "j", &[]).rest();
    let mut seqs: Vec<_> = seen.iter().map(|event| event.data["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs.pop(), Some(51));
    seqs.sort_unstable();
    assert_eq!(seqs, (0..3 * events).collect::<Vec<_>>());
    let offsets: Vec<_> = seen.iter().map(Event::offset).collect();
    assert_eq!(offsets, (1..=3 * events + 1).collect::<Vec<_>>());
}
