//! Redis Streams as a sink.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::memory::MemoryStore;
use hapax_relay::sinks::{RedisStreamSink, StreamTrim};
use hapax_relay::{OutboundMessage, Sink};
use hapax_testkit::Redis;

use crate::support::{
    Working, brisk, dead, depth, drain, drained, enqueue, item, outlast_a_kill, stored, until,
};

#[tokio::test]
async fn a_row_is_an_entry_of_the_stream_of_its_topic() {
    let redis = Redis::start();
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    let row = item("{\"n\":1}").key("order-1").content_type("application/json").header("x", "y");
    sink.send(&OutboundMessage::new(row.clone())).await.unwrap();
    let entry = redis.cli(&["XRANGE", "orders", "-", "+"]);
    let lines: Vec<_> = entry.lines().skip(1).collect();
    let fields = [
        ("id", &*row.id.to_string()),
        ("key", "order-1"),
        ("payload", "{\"n\":1}"),
        ("content_type", "application/json"),
        ("headers", r#"{"Hapax-Topic":"orders","Hapax-Key":"order-1","x":"y"}"#),
    ];
    assert_eq!(lines, fields.map(|(name, value)| [name, value]).concat());
}

#[tokio::test]
async fn fault_33_stream_is_trimmed_to_its_maximum() {
    let redis = Redis::with(&["--appendonly", "no", "--stream-node-max-entries", "10"]);
    let sink = RedisStreamSink::new(&redis.url()).unwrap().trim(StreamTrim::MaxEntries(50));
    for n in 0..200 {
        sink.send(&OutboundMessage::new(item(&n.to_string()))).await.unwrap();
    }
    let length: u64 = redis.cli(&["XLEN", "orders"]).trim().parse().unwrap();
    assert!((50..=70).contains(&length), "{length}");
}

#[tokio::test]
async fn fault_33_stream_is_trimmed_by_age() {
    let redis = Redis::with(&["--appendonly", "no", "--stream-node-max-entries", "10"]);
    // Two nodes of the year 1970: only whole nodes are trimmed.
    for n in 1..=20 {
        redis.cli(&["XADD", "orders", &format!("{n}-0"), "payload", "old"]);
    }
    let hour = Duration::from_secs(3600);
    let sink = RedisStreamSink::new(&redis.url()).unwrap().trim(StreamTrim::MaxAge(hour));
    sink.send(&OutboundMessage::new(item("new"))).await.unwrap();
    assert_eq!(redis.cli(&["XLEN", "orders"]), "1");
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_the_rows_own_failure() {
    let redis = Redis::start();
    redis.cli(&["SET", "orders", "text"]);
    let store = stored(&[item("1")]).await;
    drain(&store, Arc::new(RedisStreamSink::new(&redis.url()).unwrap()), brisk(), 1).await;
    let dead = &dead(&*store).await[0];
    assert!(dead.reason.contains("WRONGTYPE"), "{}", dead.reason);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_the_middle_loses_nothing() {
    let redis = Redis::start();
    let sink = RedisStreamSink::new(&redis.url()).unwrap();
    let rows = outlast_a_kill(sink, || redis.kill(), async || redis.restart()).await;
    let entries = redis.cli(&["XRANGE", "orders", "-", "+"]);
    let arrived: BTreeSet<_> = entries.lines().collect();
    for row in &rows {
        assert!(arrived.contains(row.id.to_string().as_str()), "a row is missing");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_idle_connection_loss_uses_up_no_attempt() {
    let redis = Redis::start();
    let store = Arc::new(MemoryStore::default());
    let sink = Arc::new(RedisStreamSink::new(&redis.url()).unwrap());
    let relay = Working::start(store.clone(), sink, brisk().max_attempts(1));
    for n in 0..5 {
        enqueue(&*store, &[item(&n.to_string())]).await;
        drained(&*store).await;
        redis.kill();
        // The sink notices the loss before the next row comes.
        until("the sink lets go of it", async || !is_held(redis.port())).await;
        redis.restart();
    }
    relay.stop().await;
    assert_eq!(depth(&*store).await.dead, 0);
    assert_eq!(redis.cli(&["XLEN", "orders"]), "5");
}

/// Whether a process on this machine has a connection to that port, even if the other end is
/// closed.
fn is_held(port: u16) -> bool {
    const ESTABLISHED: &str = "01";
    const CLOSE_WAIT: &str = "08";
    let port = format!(":{port:04X}");
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    // The columns are a number, the local address, the remote address and the state.
    table
        .lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .any(|fields| fields[2].ends_with(&port) && [ESTABLISHED, CLOSE_WAIT].contains(&fields[3]))
}
