//! Data that earlier versions wrote is still readable.

use std::path::Path;
use std::time::Duration;

use crate::common::*;
use hapax_core::claims::ClaimState;
use hapax_core::log::{Appended, LogEvent, LogRetention, TailPosition};
use hapax_core::queue::{
    DeadQuery, Enqueued, ItemId, LeaseRequest, QueueItem, QueueName, Resolved,
};
use hapax_core::{
    ClaimRequest, Claimed, Claims, Deleted, Expect, Fingerprint, GiveBack, Key, Log, Operation,
    Put, Queue, Records, Step, Tenant, Token,
};
use hapax_redis::RedisStore;
use hapax_testkit::Redis;

/// A server with the data of `tests/fixtures/v1.rdb`, and a store on it.
///
/// The dump was written by Redis 7.0 and hapax at commit b0a1e2b. All leases and retentions in it last
/// fifty years from November 2026, so that the fixture does not expire.
fn server_with_dump(redis: Redis) -> (Redis, RedisStore) {
    redis.kill();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/v1.rdb");
    std::fs::copy(fixture, redis.folder().join("dump.rdb")).unwrap();
    redis.restart();
    let store = patient(&redis.url());
    (redis, store)
}

const HALF_CENTURY: Duration = Duration::from_secs(50 * 366 * 86_400);
/// Where a reader of the job `open` was, in the tail and in the job.
const OPEN_POSITION: &str = "1794799908100000-1794799908101-1";
const OPEN_CURSOR: &str = "1794799908100001-3";
const YEAR: Duration = Duration::from_secs(366 * 86_400);
const WITHOUT_AOF: &[&str] = &["--appendonly", "no"];

fn shop() -> Tenant {
    Tenant::new("shop").unwrap()
}

fn command(name: &str) -> Key {
    Key::command(&shop(), Operation("pay"), name).unwrap()
}

fn ask(token: &str) -> ClaimRequest {
    let fingerprint = Some(Fingerprint::of(&[b"the request"]));
    let ask = ClaimRequest::new(HALF_CENTURY).retention(HALF_CENTURY).fingerprint(fingerprint);
    ClaimRequest { token: Token::presented(token), ..ask }
}

fn event(job: &Key, seq: u64, closes: bool) -> LogEvent {
    let payload = format!("{{\"n\":{seq}}}");
    let fingerprint = Fingerprint::of(&[payload.as_bytes()]);
    LogEvent {
        job: job.clone(),
        stage: "vision".into(),
        seq,
        fingerprint,
        payload: payload.into(),
        closes,
    }
}

fn item(name: &str) -> QueueItem {
    let item = QueueItem::new(&shop(), "mail", name.to_owned()).id(ItemId::named(&[name]));
    item.content_type("text/plain").header("trace", "7")
}

fn take(token: &str, at_most: usize) -> LeaseRequest {
    LeaseRequest { token: Token::presented(token), ..LeaseRequest::new(at_most, HALF_CENTURY) }
}

fn queue() -> QueueName {
    QueueName::new("mail{1}").unwrap()
}

async fn check_claims(store: &RedisStore) {
    let pending = store.claim(&command("pending"), &ask("other")).await.unwrap();
    assert!(matches!(pending, Claimed::Busy { lease_left } if lease_left > YEAR), "{pending:?}");
    let again = store.claim(&command("pending"), &ask("pending")).await.unwrap();
    assert!(matches!(again, Claimed::Granted { attempt: 1, .. }), "{again:?}");
    let settled = store.claim(&command("settled"), &ask("other")).await.unwrap();
    let Claimed::Settled { value, expires_in } = settled else { panic!("{settled:?}") };
    assert_eq!(value, "line 1\nline 2");
    assert!(expires_in > YEAR);
    let unknown = store.claim(&command("unknown"), &ask("other")).await.unwrap();
    assert!(matches!(unknown, Claimed::Unknown { .. }), "{unknown:?}");
    let other = ask("other").fingerprint(Some(Fingerprint::of(&[b"another request"])));
    for name in ["pending", "settled", "failed", "unknown"] {
        assert_eq!(store.claim(&command(name), &other).await.unwrap(), Claimed::Mismatch, "{name}");
    }

    let failed = store.look(&command("failed")).await.unwrap().unwrap();
    assert!(matches!(failed.state, ClaimState::Failed { expires_in } if expires_in > YEAR));
    assert_eq!((failed.attempt, failed.token), (1, Some(Token::presented("failed"))));
    assert_eq!(failed.fingerprint, ask("").fingerprint);
    let retry = store.claim(&command("failed"), &ask("retry")).await.unwrap();
    let Claimed::Granted { ticket, attempt: 2 } = retry else { panic!("{retry:?}") };
    assert!(Some(ticket.fence) > failed.fence);
    let pending = Token::presented("pending");
    let step = store.settle(&command("pending"), &pending, "done".into()).await.unwrap();
    assert!(matches!(step, Step::Done(_)), "{step:?}");
}

async fn check_locks(store: &RedisStore) {
    for name in ["held", "processing:user:U1", "processing:user:U2"] {
        let busy = store.claim(&lock(name), &ClaimRequest::new(YEAR)).await.unwrap();
        assert!(matches!(busy, Claimed::Busy { lease_left } if lease_left > YEAR), "{busy:?}");
    }
    let foreign = store.look(&lock("processing:user:U2")).await.unwrap().unwrap();
    assert_eq!((foreign.fence, foreign.token), (None, None));
    for name in ["held", "processing:user:U1"] {
        let token = Token::presented(name);
        let step = store.give_back(&lock(name), &token, GiveBack::Forget).await.unwrap();
        assert!(matches!(step, Step::Done(_)), "{step:?}");
    }
}

async fn check_records(store: &RedisStore) {
    let lasting = store.get(&record("lasting")).await.unwrap().unwrap();
    assert_eq!((&lasting.value[..], lasting.expires_in), (&b"second\n"[..], None));
    let put = Expect::Version(lasting.version);
    let put = store.put(&record("lasting"), "third".into(), &put, None).await.unwrap();
    assert!(matches!(put, Put::Stored { created: false, .. }), "{put:?}");
    for (name, value) in [("passing", "once"), ("user:U1:last_transaction", r#"{"n":1}"#)] {
        let found = store.get(&record(name)).await.unwrap().unwrap();
        assert_eq!(found.value, value);
        assert!(found.expires_in.unwrap() > YEAR);
        let delete = Expect::Version(found.version);
        assert_eq!(store.delete(&record(name), &delete).await.unwrap(), Deleted::Done);
    }
}

async fn check_log(store: &RedisStore) {
    let keep = LogRetention { retention: HALF_CENTURY, ..LogRetention::default() };
    let open = job("open");
    let found = attached(store, &open).await;
    let entries = found.entries.iter();
    let entries: Vec<_> = entries.map(|e| (e.at.offset, e.seq, &e.payload[..])).collect();
    assert_eq!(entries, [(1, 1, &br#"{"n":1}"#[..]), (2, 3, br#"{"n":3}"#), (3, 2, br#"{"n":2}"#)]);
    assert_eq!((found.head.state.as_ref().unwrap().seq, found.head.closed), (3, false));
    assert_eq!(drained(store, &open, &TailPosition::start()).await.0, [1, 2, 3]);
    // A tail position and a cursor issued by the version that wrote the dump are still valid.
    let (changes, _, lost) = drained(store, &open, &TailPosition::new(OPEN_POSITION)).await;
    assert_eq!((changes, lost), (vec![], false));
    assert!(found.head.holds(OPEN_CURSOR.parse().unwrap()));
    let answers = store.append(&[event(&open, 3, false), event(&open, 4, false)], &keep).await;
    let [Appended::Duplicate(old), Appended::Published(new)] = answers.unwrap()[..] else {
        panic!("the dedup of an earlier version is not recognised")
    };
    assert_eq!((old, new.offset), (found.entries[1].at, 4));
    let head = attached(store, &open).await.head;
    assert!(head.holds(old) && head.holds(new) && new.epoch > old.epoch);

    let closed = job("closed");
    assert!(attached(store, &closed).await.head.closed);
    let late = store.append(&[event(&closed, 3, false)], &keep).await.unwrap();
    assert_eq!(late, [Appended::Closed]);
    let head = attached(store, &job("trimmed")).await.head;
    assert_eq!((head.first, head.last, head.state.as_ref().unwrap().seq), (2, 3, 9));
}

async fn check_queue(store: &RedisStore) {
    let id = |name| ItemId::named(&[name]);
    let depth = store.depth(&queue(), Some(&shop())).await.unwrap();
    assert_eq!((depth.waiting, depth.in_flight, depth.dead), (3, 1, 1));
    let known = ["leased", "done", "dead", "waiting", "blocked", "later"].map(item);
    assert_eq!(store.enqueue(&queue(), &known).await.unwrap(), [Enqueued::Duplicate; 6]);

    let leased = store.lease(&queue(), &take("worker 1", 1)).await.unwrap();
    assert_eq!((leased.len(), leased[0].attempt), (1, 1));
    assert_eq!(leased[0].item, item("leased"));
    let token = Token::presented("worker 1");
    let done = store.ack(&queue(), &token, &[id("leased")], YEAR).await.unwrap();
    assert_eq!(done, [Resolved::Done]);
    let done = store.ack(&queue(), &Token::presented("worker 2"), &[id("done")], YEAR).await;
    assert_eq!(done.unwrap(), [Resolved::Done], "the ack is recognised");

    let dead = store.dead(&queue(), None, &DeadQuery::new(10)).await.unwrap();
    assert_eq!((dead.len(), dead[0].id, &*dead[0].reason), (1, id("dead"), "no such address"));
    assert_eq!((dead[0].attempts, dead[0].key.as_deref()), (1, Some("k")));
    let lease = async |token| {
        let leased = store.lease(&queue(), &take(token, 10)).await.unwrap();
        leased.into_iter().map(|leased| leased.item.id).collect::<Vec<_>>()
    };
    assert_eq!(lease("worker 3").await, [id("waiting")]);
    assert!(store.requeue(&queue(), None, id("dead")).await.unwrap());
    assert_eq!(lease("worker 4").await, [id("dead"), id("blocked")]);
}

async fn check_dump(redis: Redis) {
    let (_redis, store) = server_with_dump(redis);
    check_claims(&store).await;
    check_locks(&store).await;
    check_records(&store).await;
    check_log(&store).await;
    check_queue(&store).await;
}

#[tokio::test]
async fn dump_of_earlier_version_is_read_by_redis() {
    check_dump(Redis::with(WITHOUT_AOF)).await;
}

#[tokio::test]
async fn dump_of_earlier_version_is_read_by_valkey() {
    if let Some(binary) = hapax_testkit::valkey_server() {
        check_dump(Redis::binary_with(binary, WITHOUT_AOF)).await;
    }
}
