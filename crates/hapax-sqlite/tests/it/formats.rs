//! Opens files that earlier versions wrote: `v1.db` (schema 1), `v2.db` (made from it by the first
//! hapax with schema 2), and `b0a1e2b.db`, written from scratch by the commit of that name with rows
//! in every state.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use hapax_core::claims::ClaimState;
use hapax_core::log::{Appended, LogRetention, PageRequest, TailPosition};
use hapax_core::queue::{
    DeadQuery, Enqueued, ItemId, ItemOutcome, LeaseRequest, QueueItem, QueueName, Resolved,
};
use hapax_core::{
    Claimed, Claims, Clock, Expect, Log, ManualClock, Put, Queue, Records, Store, Swept, Tenant,
    Token, Version,
};
use hapax_sqlite::SqliteStore;

/// A copy of a file in `tests/fixtures`, and a store on it at the time when it was written.
fn open_fixture(name: &str) -> (Place, Arc<ManualClock>, SqliteStore) {
    let fixtures = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures"));
    let (place, clock) = (Place::new(), Arc::new(ManualClock::default()));
    std::fs::copy(fixtures.join(name), place.file()).unwrap();
    let store = SqliteStore::open(place.config().clock(clock.clone())).unwrap();
    (place, clock, store)
}

#[tokio::test]
async fn fixture_claims_and_records_are_understood() {
    check_claims_and_records("v1.db", 6, 4).await;
    check_claims_and_records("b0a1e2b.db", 9, 7).await;
}

async fn check_claims_and_records(fixture: &str, next_fence: u64, expired: u64) {
    let (_place, clock, store) = open_fixture(fixture);
    let pending = store.claim(&command("pending"), &ask()).await.unwrap();
    assert_eq!(pending, Claimed::Busy { lease_left: HOUR });
    let settled = store.claim(&command("settled"), &ask()).await.unwrap();
    assert_eq!(settled, Claimed::Settled { value: "yesterday".into(), expires_in: HOUR });
    let failed = store.look(&command("failed")).await.unwrap().unwrap();
    assert_eq!(failed.state, ClaimState::Failed { expires_in: HOUR });

    let lasting = store.get(&record("lasting")).await.unwrap().unwrap();
    assert_eq!((lasting.version.as_str(), lasting.expires_in), ("4", None));
    let passing = store.get(&record("passing")).await.unwrap().unwrap();
    assert_eq!((&passing.value[..], passing.expires_in), (&b"100"[..], Some(HOUR)));

    // The sequence goes on where it was.
    let retried = store.claim(&command("failed"), &ask()).await.unwrap();
    let Claimed::Granted { ticket, attempt: 2 } = retried else { panic!("{retried:?}") };
    assert_eq!(ticket.fence.0, next_fence);
    let expect = Expect::Version(Version::new("4"));
    let put = store.put(&record("lasting"), "120".into(), &expect, None).await.unwrap();
    assert_eq!(
        put,
        Put::Stored { version: Version::new((next_fence + 1).to_string()), created: false }
    );

    clock.advance(HOUR * 3);
    assert!(clock.now().0 > 0);
    assert_eq!(store.sweep(100).await.unwrap(), Swept { count: expired, more: false });
    assert!(store.get(&record("lasting")).await.unwrap().is_some());
}

#[tokio::test]
async fn fixture_v1_takes_logs_and_queues() {
    let (_place, _, store) = open_fixture("v1.db");
    let added = store.append(&[event("new", 1)], &LogRetention::default()).await.unwrap();
    assert!(matches!(added[0], Appended::Published(_)));
    let added = store.enqueue(&QueueName::outbox(), &[item("new", None)]).await.unwrap();
    assert_eq!(added, [Enqueued::Accepted]);
}

fn item(name: &str, key: Option<&str>) -> QueueItem {
    let item = QueueItem::new(&Tenant::default(), "orders", name.to_owned()).id(id(name));
    let item = item.header("traceparent", "00-1-2-03").content_type("text/plain");
    key.map_or(item.clone(), |key| item.key(key))
}

fn id(name: &str) -> ItemId {
    ItemId::named(&["fixture", name])
}

fn holder() -> Token {
    Token::presented("holder")
}

const TWO: LogRetention = LogRetention { retention: HOUR, max_entries: 2 };

/// How `v2.db` was made from `v1.db`. Never make it again: that would be a file of today's version.
/// `b0a1e2b.db` was made in the same way, on top of a claim in each state and two records.
#[tokio::test]
#[ignore = "writes a fixture"]
async fn write_the_fixture() {
    let (place, _, store) = open_fixture("v1.db");
    let outbox = QueueName::outbox();
    let events = [event("open", 10), event("open", 12), event("open", 11)];
    let _ = store.append(&events, &TWO).await.unwrap();
    let mut last = event("closed", 51);
    last.closes = true;
    let _ = store.append(&[last], &TWO).await.unwrap();

    for first in ["dead", "done"] {
        let _ = store.enqueue(&outbox, &[item(first, Some(first))]).await.unwrap();
        let take = LeaseRequest::new(1, HOUR);
        store.lease(&outbox, &take).await.unwrap();
        let outcome = match first {
            "dead" => ItemOutcome::Bury { reason: "refused".into(), blocks: true },
            _ => ItemOutcome::Ack { retention: HOUR },
        };
        let _ = store.resolve(&outbox, &take.token, &[(id(first), outcome)]).await.unwrap();
    }
    let _ = store.enqueue(&outbox, &[item("held", None)]).await.unwrap();
    let take = LeaseRequest { token: holder(), ..LeaseRequest::new(1, HOUR) };
    store.lease(&outbox, &take).await.unwrap();
    let rest = [item("behind", Some("dead")), item("later", None).delay(HOUR), item("ready", None)];
    let _ = store.enqueue(&outbox, &rest).await.unwrap();

    drop(store);
    place.stranger().query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    std::fs::copy(place.file(), std::env::var("HAPAX_WRITE_FIXTURE").unwrap()).unwrap();
}

#[tokio::test]
async fn fixture_logs_are_understood() {
    for fixture in ["v2.db", "b0a1e2b.db"] {
        check_logs(fixture).await;
    }
}

async fn check_logs(fixture: &str) {
    let (_place, clock, store) = open_fixture(fixture);
    let open =
        store.attach(&job("open"), &PageRequest::new(0, 100).with_state()).await.unwrap().unwrap();
    assert_eq!((open.head.first, open.head.last, open.head.closed), (2, 3, false));
    assert_eq!((open.head.state.as_ref().unwrap().seq, open.head.expires_in), (12, HOUR));
    assert_eq!(open.entries.iter().map(|e| e.seq).collect::<Vec<_>>(), [12, 11]);
    let epoch = open.head.epochs.last();

    let again = store.append(&[event("open", 10), event("closed", 1)], &TWO).await.unwrap();
    assert!(matches!(again[0], Appended::Duplicate(at) if at.offset == 1 && at.epoch == epoch));
    assert_eq!(again[1], Appended::Closed);
    let partition = job("open").partition(store.partitions());
    let tail = store.tail(&[(partition, TailPosition::new("0"))], 100).await.unwrap().remove(0);
    assert!(tail.lost, "the first one was trimmed");
    assert_eq!(tail.changes.len(), 2);

    clock.advance(HOUR);
    let anew = store.append(&[event("open", 10)], &TWO).await.unwrap();
    assert!(matches!(anew[0], Appended::Published(at) if at.offset == 1 && at.epoch > epoch));
}

#[tokio::test]
async fn fixture_queues_are_understood() {
    for fixture in ["v2.db", "b0a1e2b.db"] {
        check_queues(fixture).await;
    }
}

async fn check_queues(fixture: &str) {
    let (_place, clock, store) = open_fixture(fixture);
    let outbox = QueueName::outbox();
    let depth = store.depth(&outbox, None).await.unwrap();
    assert_eq!((depth.waiting, depth.in_flight, depth.dead), (3, 1, 1));
    let known = store.enqueue(&outbox, &[item("done", None), item("held", None)]).await.unwrap();
    assert_eq!(known, [Enqueued::Duplicate; 2]);

    let names = |leased: Vec<hapax_core::queue::LeasedItem>| -> Vec<String> {
        leased.iter().map(|l| String::from_utf8_lossy(&l.item.payload).into_owned()).collect()
    };
    let take = || LeaseRequest::new(10, HOUR * 2);
    assert_eq!(names(store.lease(&outbox, &take()).await.unwrap()), ["ready"]);
    let dead = store.dead(&outbox, None, &DeadQuery::new(10)).await.unwrap();
    assert_eq!((dead[0].id, &*dead[0].reason, dead[0].attempts), (id("dead"), "refused", 1));
    assert!(store.requeue(&outbox, None, id("dead")).await.unwrap());
    let leased = store.lease(&outbox, &take()).await.unwrap();
    let first = item("dead", Some("dead"));
    assert_eq!(leased[0].item, QueueItem { delay: Duration::ZERO, ..first });
    assert_eq!(names(leased), ["dead", "behind"]);

    let acked = store.ack(&outbox, &holder(), &[id("held")], Duration::ZERO).await.unwrap();
    assert_eq!(acked, [Resolved::Done]);
    clock.advance(HOUR);
    assert_eq!(names(store.lease(&outbox, &take()).await.unwrap()), ["later"]);
    assert!(store.sweep(100).await.unwrap().count > 0);
    let forgotten = store.enqueue(&outbox, &[item("done", None)]).await.unwrap();
    assert_eq!(forgotten, [Enqueued::Accepted]);
}
