//! Servers that hang, die, lose replies, are full, or refuse access.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use bytes::Bytes;
use hapax_core::command::{Begun, CommandConfig, CommandError, CommandState, Commands};
use hapax_core::log::{LogRetention, PageRequest, TailPosition};
use hapax_core::queue::{Enqueued, LeaseRequest, QueueItem, QueueName};
use hapax_core::{
    ClaimRequest, Claimed, Claims, Deleted, Expect, GiveBack, Log, Operation, Put, Queue, Records,
    Step, Store, StoreError, Tenant,
};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, TcpProxy};

const LIMIT: Duration = Duration::from_millis(500);
/// The timeouts of all calls, and a margin for a busy machine.
const BOUND: Duration = Duration::from_secs(60);

fn brisk(url: &str) -> RedisStore {
    RedisStore::open(config(url).timeout(LIMIT)).unwrap()
}

/// A store with a short timeout that is connected.
async fn connected(url: &str) -> RedisStore {
    let store = brisk(url);
    until_it_works(|| store.ping()).await;
    store
}

/// A store behind a proxy that can drop replies. The scripts are loaded, so that the dropped reply is that of the call
/// itself and not a NOSCRIPT error.
async fn lossy() -> (Redis, RedisStore, TcpProxy) {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let store = patient(&through(&wire));
    let key = lock("warm-up");
    let ticket = granted(&store, &key, &ClaimRequest::new(LONG).retention(LONG)).await;
    let _ = store.settle(&key, &ticket.token, "x".into()).await.unwrap();
    let _ = store.give_back(&key, &ticket.token, GiveBack::Forget).await.unwrap();
    let _ = store.put(&record("warm-up"), "x".into(), &Expect::Any, None).await.unwrap();
    let _ = store.delete(&record("warm-up"), &Expect::Any).await.unwrap();
    (redis, store, wire)
}

/// Every kind of call fails within its timeout.
async fn all_calls_fail_in_time(store: &RedisStore) {
    let (key, token) = (lock("down"), ClaimRequest::new(LONG).token);
    let started = Instant::now();
    let answers = [
        store.claim(&key, &ClaimRequest::new(LONG)).await.map(drop),
        store.extend(&key, &token, LONG).await.map(drop),
        store.settle(&key, &token, "x".into()).await.map(drop),
        store.give_back(&key, &token, GiveBack::Forget).await.map(drop),
        store.look(&key).await.map(drop),
        store.get(&record("down")).await.map(drop),
        store.put(&record("down"), "x".into(), &Expect::Any, None).await.map(drop),
        store.delete(&record("down"), &Expect::Any).await.map(drop),
        store.ping().await,
        store.append(&events(&job("down"), [0]), &LogRetention::default()).await.map(drop),
        store.attach(&job("down"), &PageRequest::new(0, 1).with_state()).await.map(drop),
        store.tail(&[(0, TailPosition::start()), (1, TailPosition::end())], 1).await.map(drop),
        store.enqueue(&QueueName::outbox(), &[]).await.map(drop),
        store.lease(&QueueName::outbox(), &LeaseRequest::new(1, LONG)).await.map(drop),
        store.examine().await.map(drop),
    ];
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    for answer in answers {
        let passing = answer.as_ref().err().is_some_and(StoreError::is_transient);
        assert!(passing, "{answer:?}");
    }
}

#[tokio::test]
async fn store_opens_without_a_server_and_calls_time_out() {
    let redis = Redis::start();
    redis.kill();
    let store = brisk(&redis.url());
    all_calls_fail_in_time(&store).await;
    redis.restart();
    until_it_works(|| store.ping()).await;
}

#[tokio::test]
async fn hanging_server_times_out_and_recovers() {
    let redis = Redis::start();
    let store = connected(&redis.url()).await;
    let ticket = granted(&patient(&redis.url()), &lock("a"), &ClaimRequest::new(LONG)).await;
    redis.stop();
    all_calls_fail_in_time(&store).await;
    redis.cont();
    let key = lock("a");
    let again = until_it_works(|| store.extend(&key, &ticket.token, LONG)).await;
    assert_eq!(again, Step::Done(ticket.fence));
}

#[tokio::test]
async fn hanging_server_times_out_for_many_callers() {
    let redis = Redis::start();
    let store = RedisStore::open(config(&redis.url()).timeout(LIMIT).max_in_flight(8)).unwrap();
    until_it_works(|| store.ping()).await;
    redis.stop();
    let started = Instant::now();
    let calls: Vec<_> = (0..500)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.look(&lock(&format!("k{i}"))).await })
        })
        .collect();
    for call in calls {
        assert!(matches!(call.await.unwrap(), Err(StoreError::Timeout { .. })));
    }
    assert!(started.elapsed() < BOUND);
    redis.cont();
    until_it_works(|| store.ping()).await;
}

#[tokio::test]
async fn killed_server_recovers_with_acknowledged_writes() {
    let redis = Redis::start();
    let store = connected(&redis.url()).await;
    // With a retention, so that a settle that timed out is recognised when it is repeated.
    let ask = ClaimRequest::new(LONG).retention(LONG);
    let ticket = granted(&patient(&redis.url()), &lock("a"), &ask).await;
    redis.kill();
    all_calls_fail_in_time(&store).await;
    redis.restart();
    let (key, ask) = (lock("a"), ClaimRequest::new(LONG));
    let answer = until_it_works(|| store.claim(&key, &ask)).await;
    assert!(matches!(answer, Claimed::Busy { .. }), "{answer:?}");
    let step = until_it_works(|| store.settle(&key, &ticket.token, "x".into())).await;
    assert_eq!(step, Step::Done(ticket.fence));
}

/// The first crash cuts off the writes of a script. What the mended server acknowledges then must survive the second one.
#[tokio::test]
async fn mended_append_only_file_keeps_what_follows() {
    let redis = Redis::start();
    let queue = QueueName::outbox();
    let items = ["cut", "kept"].map(|key| QueueItem::new(&Tenant::default(), "t", "p").key(key));
    let enqueue = async |item: &QueueItem| {
        let store = patient(&redis.url());
        let all = [item.clone()];
        assert_eq!(store.enqueue(&queue, &all).await.unwrap(), [Enqueued::Accepted]);
    };
    enqueue(&items[0]).await;
    redis.kill();
    let mut files = std::fs::read_dir(redis.folder().join("appendonlydir")).unwrap();
    let is_log = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let log = files.find_map(|file| Some(file.unwrap().path()).filter(is_log)).unwrap();
    let log = OpenOptions::new().write(true).open(log).unwrap();
    // In the middle of a command before the `EXEC` of the script.
    log.set_len(log.metadata().unwrap().len() - 30).unwrap();
    redis.restart();
    enqueue(&items[1]).await;
    redis.kill();
    redis.restart();
    let leased = patient(&redis.url()).lease(&queue, &LeaseRequest::new(5, LONG)).await.unwrap();
    assert_eq!(leased.iter().map(|one| one.item.id).collect::<Vec<_>>(), [items[1].id]);
}

#[tokio::test]
async fn connection_in_a_black_hole_is_replaced() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let store = connected(&through(&wire)).await;
    wire.black_hole();
    assert!(store.ping().await.is_err());
    until_it_works(|| store.ping()).await;
}

#[tokio::test]
async fn connection_cut_between_two_calls_is_not_noticed() {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let store = patient(&through(&wire));
    for i in 0..5 {
        granted(&store, &lock(&format!("k{i}")), &ClaimRequest::new(LONG)).await;
        wire.cut();
    }
}

#[tokio::test]
async fn claim_with_a_lost_reply_is_granted_once() {
    let (_redis, store, wire) = lossy().await;
    let ask = ClaimRequest::new(LONG);
    wire.drop_next_answer_to(ask.token.as_str().as_bytes());
    let answer = store.claim(&lock("a"), &ask).await.unwrap();
    assert_eq!(wire.dropped_answers(), 1);
    let Claimed::Granted { ref ticket, attempt: 1 } = answer else { panic!("{answer:?}") };
    let view = store.look(&lock("a")).await.unwrap().unwrap();
    assert_eq!((view.fence, view.attempt), (Some(ticket.fence), 1));
    // The same for a repetition by the caller.
    assert_eq!(store.claim(&lock("a"), &ask).await.unwrap(), answer);
    assert!(matches!(
        store.claim(&lock("a"), &ask.with_fresh_token()).await.unwrap(),
        Claimed::Busy { .. }
    ));
}

#[tokio::test]
async fn settle_with_a_lost_reply_is_done_once() {
    let (_redis, store, wire) = lossy().await;
    let ask = ClaimRequest::new(LONG).retention(LONG);
    let ticket = granted(&store, &lock("a"), &ask).await;
    wire.drop_next_answer_to(b"the value");
    let step = store.settle(&lock("a"), &ticket.token, "the value".into()).await.unwrap();
    assert_eq!((step, wire.dropped_answers()), (Step::Done(ticket.fence), 1));
}

#[tokio::test]
async fn settle_without_retention_with_a_lost_reply_is_never_lost() {
    let (_redis, store, wire) = lossy().await;
    let ticket = granted(&store, &lock("a"), &ClaimRequest::new(LONG)).await;
    wire.drop_next_answer_to(b"the value");
    let answer = store.settle(&lock("a"), &ticket.token, "the value".into()).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    assert_eq!(wire.dropped_answers(), 1);
    assert_eq!(store.look(&lock("a")).await.unwrap(), None);
}

/// A released lock leaves no row, so the repeated call cannot be recognised: it returns an error, never *lost*.
#[tokio::test]
async fn release_with_a_lost_reply_is_never_lost() {
    let (_redis, store, wire) = lossy().await;
    let ticket = granted(&store, &lock("a"), &ClaimRequest::new(LONG)).await;
    wire.drop_next_answer_to(ticket.token.as_str().as_bytes());
    let answer = store.give_back(&lock("a"), &ticket.token, GiveBack::Forget).await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    assert_eq!(wire.dropped_answers(), 1);
    assert_eq!(store.look(&lock("a")).await.unwrap(), None);
}

#[tokio::test]
async fn put_with_a_lost_reply_is_stored_once() {
    let (_redis, store, wire) = lossy().await;
    wire.drop_next_answer_to(b"the value");
    let put = store.put(&record("r"), "the value".into(), &Expect::Absent, None).await.unwrap();
    assert_eq!(wire.dropped_answers(), 1);
    let Put::Stored { version, created: true } = put else { panic!("{put:?}") };
    assert_eq!(store.get(&record("r")).await.unwrap().unwrap().version, version);
}

#[tokio::test]
async fn verbatim_put_with_a_lost_reply_is_stored_once() {
    let (_redis, store, wire) = lossy().await;
    let key = record("user:U1:last_transaction");
    wire.drop_next_answer_to(b"the value");
    let put = store.put(&key, "the value".into(), &Expect::Absent, None).await.unwrap();
    assert_eq!(wire.dropped_answers(), 1);
    assert!(matches!(put, Put::Stored { created: true, .. }), "{put:?}");
    assert_eq!(store.get(&key).await.unwrap().unwrap().value, "the value");
}

#[tokio::test]
async fn delete_with_a_lost_reply_is_done_once() {
    let (_redis, store, wire) = lossy().await;
    let _ = store.put(&record("r"), "x".into(), &Expect::Any, None).await.unwrap();
    wire.drop_next_answer_to(b"record::r");
    let deleted = store.delete(&record("r"), &Expect::Any).await.unwrap();
    assert_eq!((deleted, wire.dropped_answers()), (Deleted::Done, 1));
    assert_eq!(store.get(&record("r")).await.unwrap(), None);
}

/// The first attempt may have been executed by a master that a replica without its marker has replaced.
#[tokio::test]
async fn record_refusal_after_a_lost_reply_is_an_error() {
    let (_redis, store, wire) = lossy().await;
    let _ = store.put(&record("r"), "old".into(), &Expect::Any, None).await.unwrap();
    wire.drop_next_answer_to(b"the value");
    let put = store.put(&record("r"), "the value".into(), &Expect::Absent, None).await;
    assert!(matches!(put, Err(StoreError::Unavailable { .. })), "{put:?}");
    wire.drop_next_answer_to(b"record::missing");
    let deleted = store.delete(&record("missing"), &Expect::Any).await;
    assert!(matches!(deleted, Err(StoreError::Unavailable { .. })), "{deleted:?}");
    assert_eq!(wire.dropped_answers(), 2);
    assert_eq!(store.get(&record("r")).await.unwrap().unwrap().value, "old");
}

/// The version of a verbatim record is a digest of its bytes, so that the old bytes have the old version again.
#[tokio::test]
async fn fault_01_repeated_verbatim_put_keeps_a_later_write() {
    let (redis, store, wire) = lossy().await;
    for name in
        ["user:U1:last_transaction", "user:{U1}:last_transaction", "user:}:last_transaction"]
    {
        let (other, key) = (patient(&redis.url()), record(name));
        let _ = other.put(&key, "old".into(), &Expect::Any, None).await.unwrap();
        let old = other.get(&key).await.unwrap().unwrap().version;
        wire.stall_answers();
        let put = tokio::spawn({
            let (store, key) = (store.clone(), key.clone());
            async move { store.put(&key, "new".into(), &Expect::Version(old), None).await }
        });
        while other.get(&key).await.unwrap().unwrap().value != "new" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let _ = other.put(&key, "old".into(), &Expect::Any, None).await.unwrap();
        wire.cut();
        wire.resume();
        let answer = put.await.unwrap();
        let is_truthful = matches!(
            answer,
            Ok(Put::Stored { created: false, .. }) | Err(StoreError::Unavailable { .. })
        );
        assert!(is_truthful, "{answer:?}");
        assert_eq!(other.get(&key).await.unwrap().unwrap().value, "old", "{name}");
    }
}

/// A stopped server executes the requests in its sockets when it continues, however late that is.
#[tokio::test]
async fn fault_02_claim_during_a_long_stall_is_not_unknown() {
    let redis = Redis::start();
    let store = connected(&redis.url()).await;
    let commands = Commands::new(Arc::new(store.clone()));
    let (pay, lease) = (Operation("pay"), Duration::from_secs(1));
    let config = CommandConfig::default().lease(lease).retention(LONG);
    // Loads the script.
    let _ = commands.begin(pay, "warm-up", &config).await.unwrap();
    redis.stop();
    let begun = commands.begin(pay, "k", &config).await;
    assert!(matches!(begun, Err(CommandError::Store(_))), "{begun:?}");
    // Longer than the timeout, the allowance for clocks, and the lease.
    tokio::time::sleep(LIMIT + 2 * lease).await;
    redis.cont();
    let deadline = Instant::now() + BOUND;
    loop {
        match commands.look(pay, "k").await {
            Ok(Some(view)) => {
                let unknown = matches!(view.state, CommandState::Unknown { .. });
                assert!(!unknown, "nothing ran, and the outcome is unknown");
            }
            Ok(None) => break,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The late claim is in the socket before the look, so that it was refused by now.
    let begun = until_begun(&commands, pay, "k", &config).await;
    assert!(matches!(begun, Begun::Granted { .. }), "{begun:?}");
}

async fn until_begun(
    commands: &Commands,
    operation: Operation<'_>,
    key: &str,
    config: &CommandConfig,
) -> Begun {
    let deadline = Instant::now() + BOUND;
    loop {
        match commands.begin(operation, key, config).await {
            Ok(begun) => return begun,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test]
async fn full_server_is_reported_and_keeps_its_data() {
    let (redis, store) = server_with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let old = Bytes::from("old");
    let Put::Stored { version, .. } =
        store.put(&record("r"), old.clone(), &Expect::Any, None).await.unwrap()
    else {
        panic!()
    };
    let ask = ClaimRequest::new(LONG).retention(LONG);
    let ticket = granted(&store, &lock("a"), &ask).await;
    redis.cli(&["SETRANGE", "filler", "3000000", "x"]);

    let expect = Expect::Version(version.clone());
    let big = Bytes::from(vec![b'x'; 100_000]);
    let answers = [
        store.put(&record("r"), big.clone(), &expect, None).await.map(drop),
        store.put(&record("new"), big.clone(), &Expect::Any, None).await.map(drop),
        store.settle(&lock("a"), &ticket.token, big).await.map(drop),
        store.claim(&lock("b"), &ClaimRequest::new(LONG)).await.map(drop),
    ];
    for answer in answers {
        assert!(matches!(answer, Err(StoreError::Full { .. })), "{answer:?}");
    }
    let kept = store.get(&record("r")).await.unwrap().unwrap();
    assert_eq!((kept.value, kept.version), (old, version));
    assert_eq!(store.get(&record("new")).await.unwrap(), None);
    assert_eq!(store.look(&lock("b")).await.unwrap(), None);

    redis.cli(&["DEL", "filler"]);
    let step = store.settle(&lock("a"), &ticket.token, "small".into()).await.unwrap();
    assert_eq!(step, Step::Done(ticket.fence));
}

#[tokio::test]
async fn release_works_on_a_full_server() {
    let (redis, store) = server_with(&["--maxmemory", "3mb", "--maxmemory-policy", "noeviction"]);
    let ticket = granted(&store, &lock("a"), &ClaimRequest::new(LONG)).await;
    redis.cli(&["SETRANGE", "filler", "3000000", "x"]);
    let step = store.give_back(&lock("a"), &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(step, Step::Done(ticket.fence));
}

#[tokio::test]
async fn fences_grow_across_release_deletion_and_a_flushed_server() {
    let (redis, store) = server();
    let key = lock("a");
    let mut last = granted(&store, &key, &ClaimRequest::new(LONG)).await;
    for round in 0..200 {
        match round % 3 {
            0 => drop(store.give_back(&key, &last.token, GiveBack::Forget).await.unwrap()),
            1 if round % 20 == 1 => drop(redis.cli(&["FLUSHALL"])),
            _ if round % 20 == 2 => drop(redis.cli(&["DEL", "hapax:{default:lock::a}"])),
            _ => drop(store.give_back(&key, &last.token, GiveBack::Keep).await.unwrap()),
        }
        let next = granted(&store, &key, &ClaimRequest::new(LONG)).await;
        assert!(next.fence > last.fence, "{:?} after {:?}", next.fence, last.fence);
        last = next;
    }
}

#[tokio::test]
async fn scripts_are_sent_again_after_a_script_flush() {
    let (redis, store) = server();
    let ticket = granted(&store, &lock("a"), &ClaimRequest::new(LONG)).await;
    redis.cli(&["SCRIPT", "FLUSH"]);
    let step = store.extend(&lock("a"), &ticket.token, LONG).await.unwrap();
    assert_eq!(step, Step::Done(ticket.fence));
}

#[tokio::test]
async fn wrong_password_is_refused_and_not_shown() {
    let redis = Redis::with(&["--requirepass", "right"]);
    let port = redis.port();
    for login in ["", ":wrong@", "nobody:wrong@"] {
        let answer = patient(&format!("redis://{login}127.0.0.1:{port}")).ping().await;
        let Err(StoreError::Refused { reason }) = answer else { panic!("{login}: {answer:?}") };
        assert!(!reason.contains("wrong"), "{reason}");
    }
    patient(&format!("redis://:right@127.0.0.1:{port}")).ping().await.unwrap();
}

#[tokio::test]
async fn replica_is_read_only() {
    let redis = Redis::start();
    redis.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    redis.cli(&["CONFIG", "SET", "replica-serve-stale-data", "yes"]);
    let answer = patient(&redis.url()).claim(&lock("a"), &ClaimRequest::new(LONG)).await;
    assert!(matches!(answer, Err(StoreError::ReadOnly { .. })), "{answer:?}");
}

#[tokio::test]
async fn tls_with_a_private_authority_needs_the_ca_file() {
    let redis = Redis::tls();
    let answer = patient(&redis.url()).ping().await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    let ca = redis.ca_path().display();
    patient(&format!("{}?ca={ca}", redis.url())).ping().await.unwrap();
    let missing = RedisStore::open(config("rediss://localhost?ca=/no/such/file"));
    assert!(matches!(missing, Err(StoreError::Incompatible { .. })));
}
