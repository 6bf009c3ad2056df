//! Records that change between the plain commands that read them, and servers on which a script has to read them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use crate::common::*;
use hapax_core::{Expect, Put, Record, Records, StoreError, StoreResult, Version};
use hapax_redis::RedisStore;
use hapax_testkit::Redis;
use tokio::sync::oneshot;

const KEY: &str = "hapax:{default:record::r}";
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Stops what a client sends before the first command of this name, until the test lets it go on. Whether the
/// server executes commands of other clients between those of one pipeline is otherwise left to chance.
struct PausingProxy {
    port: u16,
    paused: oneshot::Receiver<()>,
    resume: mpsc::Sender<()>,
}

impl PausingProxy {
    fn before(command: &'static str, server_port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (report, paused) = oneshot::channel();
        let (resume, resumed) = mpsc::channel();
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", server_port)).unwrap();
            server.set_nodelay(true).unwrap();
            let (mut replies, mut to_client) =
                (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut replies, &mut to_client));
            let head = format!("*{}\r\n${}\r\n{command}\r\n", arguments(command), command.len());
            let (mut sent, mut report) = (vec![0; 64 << 10], Some(report));
            // Commands of one pipeline are short, and arrive in one piece on the loopback.
            while let Ok(length @ 1..) = client.read(&mut sent) {
                let sent = &sent[..length];
                let at = sent.windows(head.len()).position(|part| part == head.as_bytes());
                let (before, rest) = sent.split_at(at.unwrap_or(length));
                server.write_all(before).unwrap();
                if at.is_some()
                    && let Some(report) = report.take()
                {
                    report.send(()).unwrap();
                    resumed.recv().unwrap();
                }
                server.write_all(rest).unwrap();
            }
        });
        Self { port, paused, resume }
    }
}

/// The number of words of a command that reads a record.
fn arguments(command: &str) -> usize {
    if command == "GETRANGE" { 4 } else { 2 }
}

async fn put(store: &RedisStore, value: &'static str, ttl: Option<Duration>) -> Version {
    match store.put(&record("r"), value.into(), &Expect::Any, ttl).await.unwrap() {
        Put::Stored { version, .. } => version,
        other => panic!("{other:?}"),
    }
}

/// Reads a record of one hour that another client changes after it was read, before a command that follows in the same pipeline.
async fn read_around<T>(
    command: &'static str,
    change: impl AsyncFnOnce(&Redis, RedisStore) -> T,
) -> (StoreResult<Option<Record>>, T) {
    let (redis, other) = server();
    put(&other, "first", Some(LONG)).await;
    redis.cli(&["CONFIG", "RESETSTAT"]);
    let proxy = PausingProxy::before(command, redis.port());
    let store = patient(&format!("redis://127.0.0.1:{}", proxy.port));
    let read = tokio::spawn(async move { store.get(&record("r")).await });
    let paused = tokio::time::timeout(WAIT_TIMEOUT, proxy.paused).await;
    paused.expect("the pipeline is sent").unwrap();
    // The server answers in turn, so that `GET` is executed before the change.
    wait_until_read(&redis).await;
    let changed = change(&redis, other).await;
    proxy.resume.send(()).unwrap();
    let read = tokio::time::timeout(WAIT_TIMEOUT, read).await.expect("the record is read");
    (read.unwrap(), changed)
}

async fn wait_until_read(redis: &Redis) {
    while !redis.cli(&["INFO", "commandstats"]).contains("cmdstat_get:calls=1,") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_put_between_the_reads_has_its_own_ttl() {
    for command in ["PTTL", "GETRANGE"] {
        let change = async |_: &Redis, other: RedisStore| put(&other, "second", Some(DAY)).await;
        let (found, version) = read_around(command, change).await;
        let found = found.unwrap().unwrap();
        assert_eq!((&*found.value, found.version), (&b"second"[..], version), "{command}");
        assert!(found.expires_in.unwrap() > LONG, "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_put_with_the_ttl_kept_is_read_whole() {
    for command in ["PTTL", "GETRANGE"] {
        let change = async |_: &Redis, other: RedisStore| put(&other, "first", None).await;
        let (found, version) = read_around(command, change).await;
        let found = found.unwrap().unwrap();
        assert_eq!((&*found.value, found.version), (&b"first"[..], version), "{command}");
        assert!(found.expires_in.unwrap() <= LONG, "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_made_again_between_the_reads_is_the_new_one() {
    for command in ["PTTL", "GETRANGE"] {
        let change = async |redis: &Redis, other: RedisStore| {
            redis.cli(&["DEL", KEY]);
            put(&other, "first", None).await
        };
        let (found, version) = read_around(command, change).await;
        let found = found.unwrap().unwrap();
        assert_eq!((found.version, found.expires_in), (version, None), "{command}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_that_goes_between_the_reads_is_absent() {
    for command in ["PTTL", "GETRANGE"] {
        for removal in [&["DEL", KEY][..], &["PEXPIRE", KEY, "1"]] {
            let change = async |redis: &Redis, _: RedisStore| {
                redis.cli(removal);
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let (found, ()) = read_around(command, change).await;
            assert_eq!(found.unwrap(), None, "{command} {removal:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn record_that_becomes_a_list_between_the_reads_is_corrupt() {
    for command in ["PTTL", "GETRANGE"] {
        let change = async |redis: &Redis, _: RedisStore| {
            redis.cli(&["DEL", KEY]);
            redis.cli(&["RPUSH", KEY, "a"]);
        };
        let (answer, ()) = read_around(command, change).await;
        assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{command}: {answer:?}");
    }
}

/// An account that was made before records were read by plain commands.
#[tokio::test]
async fn record_is_read_by_a_user_without_getrange() {
    let (redis, store) = server();
    let version = put(&store, "x", Some(LONG)).await;
    redis.cli(&["ACL", "SETUSER", "ann", "on", ">x", "~*", "&*", "+@all", "-getrange"]);
    let store = patient(&format!("redis://ann:x@127.0.0.1:{}", redis.port()));
    let found = store.get(&record("r")).await.unwrap().unwrap();
    assert_eq!((&*found.value, found.version), (&b"x"[..], version));
    assert_eq!(store.get(&record("absent")).await.unwrap(), None);
}

/// A master that hands its slots over pauses writes until it knows its successor, which may accept puts before that. A
/// read that it answered meanwhile could be older than an acknowledged put.
#[tokio::test(flavor = "multi_thread")]
async fn cluster_record_read_waits_while_a_master_hands_over() {
    let (cluster, store) = cluster();
    put(&store, "x", None).await;
    let master = cluster.node(cluster.master_of(KEY));
    assert_eq!(master.cli(&["CLIENT", "PAUSE", "600000", "WRITE"]), "OK");
    let read = tokio::spawn(async move { store.get(&record("r")).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!read.is_finished(), "a master answered that may have a successor");
    assert_eq!(master.cli(&["CLIENT", "UNPAUSE"]), "OK");
    let found = tokio::time::timeout(WAIT_TIMEOUT, read).await.expect("the record is read");
    assert_eq!(found.unwrap().unwrap().unwrap().value, "x");
}
