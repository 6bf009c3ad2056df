//! Locks of others, a full disk, callers that went away, panics: an answer in time, and everything
//! as before when it is over.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use crate::common::*;
use hapax_core::log::Appended;
use hapax_core::queue::QueueName;
use hapax_core::{
    ClaimQuery, ClaimRequest, Claimed, Claims, Clock, Expect, KeyKind, Log, ManualClock, Oversight,
    Put, Queue, Records, Step, Store, StoreError, Tenant, Timestamp, Version,
};
use hapax_sqlite::{SqliteStore, rusqlite::Connection};

const IMPATIENT: Duration = Duration::from_secs(3);

fn impatient(place: &Place) -> SqliteStore {
    SqliteStore::open(place.config().timeout(IMPATIENT)).unwrap()
}

fn write_lock(place: &Place) -> Connection {
    let other = place.stranger();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    other
}

#[tokio::test]
async fn foreign_write_lock_is_reported_within_the_timeout() {
    let place = Place::new();
    let store = impatient(&place);
    let other = write_lock(&place);
    let (key, ask) = (command("a"), ask());
    let claim = async || store.claim(&key, &ask).await;
    for _ in 0..3 {
        let answer = retry_timeouts(claim).await;
        assert!(matches!(answer, Err(StoreError::Locked { .. })), "{answer:?}");
    }
    let answer = retry_timeouts(async || store.ping().await).await;
    assert!(matches!(answer, Err(StoreError::Locked { .. })), "{answer:?}");
    other.execute_batch("ROLLBACK").unwrap();
    ticket(retry_timeouts(claim).await);
}

#[tokio::test]
async fn settled_claim_is_answered_by_a_reader() {
    let (place, store) = Place::with_store();
    settled(&store, &command("done"), "paid").await;
    ticket(store.claim(&command("held"), &ask()).await);
    let _ = store.put(&record("r"), "1".into(), &Expect::Any, None).await.unwrap();
    let commits = store.commits();
    let _other = write_lock(&place);

    let replay = store.claim(&command("done"), &ask()).await.unwrap();
    assert!(matches!(replay, Claimed::Settled { value, .. } if value == "paid"));
    let busy = store.claim(&command("held"), &ask()).await.unwrap();
    assert!(matches!(busy, Claimed::Busy { .. }));
    assert!(store.look(&command("done")).await.unwrap().is_some());
    assert!(store.get(&record("r")).await.unwrap().is_some());
    assert_eq!(store.commits(), commits);
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_commits_many_claims_at_once() {
    let (place, store) = Place::with_store();
    let other = write_lock(&place);
    let claims: Vec<_> = (0..64)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(&command(&n.to_string()), &ask()).await })
        })
        .collect();
    other.execute_batch("ROLLBACK").unwrap();
    for claim in claims {
        ticket(claim.await.unwrap());
    }
    assert!(store.commits() < 64, "{} commits for 64 claims", store.commits());
}

#[tokio::test]
async fn replayed_claim_commits_nothing() {
    let (_place, store) = Place::with_store();
    let key = command("a");
    settled(&store, &key, "done").await;
    let commits = store.commits();
    let nobody = ask().token;
    assert_eq!(store.extend(&key, &nobody, crate::common::HOUR).await.unwrap(), Step::Lost);
    let expect = Expect::Version(Version::new("9"));
    let conflict = store.put(&record("r"), "1".into(), &expect, None).await;
    assert_eq!(conflict.unwrap(), Put::Conflict);
    assert_eq!(store.commits(), commits);
}

/// Lets a call get as far as it can without waiting.
async fn begin<F: Future + Unpin>(call: &mut F) {
    poll_fn(|context| {
        assert!(std::pin::Pin::new(&mut *call).poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn writer_skips_abandoned_calls() {
    let (place, store) = Place::with_store();
    let other = write_lock(&place);
    let (one, two) = (record("one"), record("two"));
    let mut first = store.put(&one, "1".into(), &Expect::Any, None);
    let mut second = store.put(&two, "2".into(), &Expect::Any, None);
    begin(&mut first).await;
    begin(&mut second).await;
    drop(second);
    other.execute_batch("ROLLBACK").unwrap();
    assert!(matches!(first.await.unwrap(), Put::Stored { .. }));
    // The queue is in order: what was before this has been dealt with.
    store.ping().await.unwrap();
    assert!(store.get(&two).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn full_call_queue_is_an_error_within_the_timeout() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().timeout(IMPATIENT).max_waiting_calls(1)).unwrap();
    let other = write_lock(&place);
    let puts: Vec<_> = (0..16)
        .map(|n| {
            let store = store.clone();
            let key = record(&n.to_string());
            tokio::spawn(async move { store.put(&key, "1".into(), &Expect::Any, None).await })
        })
        .collect();
    for put in puts {
        let answer = put.await.unwrap();
        let expected =
            matches!(answer, Err(StoreError::Locked { .. } | StoreError::Timeout { .. }));
        assert!(expected, "{answer:?}");
    }
    other.execute_batch("ROLLBACK").unwrap();
    retry_timeouts(async || store.ping().await).await.unwrap();
}

/// A reader hands claims to the writer, whose queue has no room for them here.
#[tokio::test(flavor = "multi_thread")]
async fn claims_wait_for_room_in_the_call_queue() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().timeout(IMPATIENT).max_waiting_calls(1)).unwrap();
    let other = write_lock(&place);
    let claims: Vec<_> = (0..16)
        .map(|n| {
            let (store, key) = (store.clone(), command(&n.to_string()));
            tokio::spawn(async move { store.claim(&key, &ask()).await })
        })
        .collect();
    // Reads behind the first claims.
    for _ in 0..4 {
        assert!(store.look(&command("0")).await.unwrap().is_none());
    }
    other.execute_batch("ROLLBACK").unwrap();
    let mut fences = BTreeSet::new();
    for claim in claims {
        fences.insert(ticket(claim.await.unwrap()).fence);
    }
    assert_eq!(fences.len(), 16);
}

#[tokio::test]
async fn full_store_recovers_when_there_is_room() {
    let place = Place::new();
    let store = SqliteStore::open(place.config().max_bytes(1 << 20)).unwrap();
    let big = bytes::Bytes::from(vec![7_u8; 100_000]);
    let mut stored = 0;
    let full = loop {
        let key = record(&stored.to_string());
        match store.put(&key, big.clone(), &Expect::Any, None).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 20, "the limit was not kept");
    };
    assert!(matches!(full, StoreError::Full { .. }), "{full:?}");
    assert!(store.get(&record("0")).await.unwrap().is_some());
    let _ = store.delete(&record("0"), &Expect::Any).await.unwrap();
    let _ = store.put(&record("again"), big, &Expect::Any, None).await.unwrap();
}

#[tokio::test]
async fn wal_does_not_grow_without_bound() {
    let (place, store) = Place::with_store();
    let length = || std::fs::metadata(beside(&place.file(), "-wal")).unwrap().len();
    // The WAL is truncated when it restarts, which a concurrent reader can delay.
    let mut written = 0;
    while written < 64 << 20 || length() > written / 2 {
        assert!(written < 512 << 20, "{} bytes after {written}", length());
        // A new value each time: SQLite does not write a page that did not change.
        let big = vec![(written >> 20) as u8; 1 << 20].into();
        let _ = store.put(&record("r"), big, &Expect::Any, None).await.unwrap();
        written += 1 << 20;
    }
}

/// An append writes several rows; a trigger makes the last of them fail.
#[tokio::test]
async fn failed_call_leaves_nothing_behind() {
    let (place, store) = Place::with_store();
    let keep = hapax_core::log::LogRetention::default();
    let _ = store.append(&[event("a", 1)], &keep).await.unwrap();
    let other = place.stranger();
    let refuse = "CREATE TRIGGER refuse BEFORE UPDATE ON hapax_jobs \
                  BEGIN SELECT RAISE(ABORT, 'not today'); END";
    other.execute_batch(refuse).unwrap();
    let failed = store.append(&[event("a", 2)], &keep).await;
    assert!(matches!(failed, Err(StoreError::Internal { .. })), "{failed:?}");
    other.execute_batch("DROP TRIGGER refuse").unwrap();
    let entries: i64 =
        other.query_row("SELECT count(*) FROM hapax_entries", [], |row| row.get(0)).unwrap();
    assert_eq!(entries, 1);
    let appended = store.append(&[event("a", 3)], &keep).await.unwrap();
    assert!(matches!(appended[0], Appended::Published(at) if at.offset == 2), "{appended:?}");
}

#[derive(Debug, Default)]
struct Faulty {
    broken: AtomicBool,
    clock: ManualClock,
}

impl Clock for Faulty {
    fn now(&self) -> Timestamp {
        assert!(!self.broken.load(Ordering::SeqCst), "a broken clock");
        self.clock.now()
    }
}

#[tokio::test]
async fn panicking_call_ends_no_thread() {
    let place = Place::new();
    let clock = Arc::new(Faulty::default());
    let store = SqliteStore::open(place.config().clock(clock.clone())).unwrap();
    let key = command("a");
    let held = ticket(store.claim(&key, &ask()).await);
    clock.broken.store(true, Ordering::SeqCst);
    for _ in 0..4 {
        let read = store.look(&key).await;
        assert!(matches!(read, Err(StoreError::Internal { .. })), "{read:?}");
        let written = store.settle(&key, &held.token, "x".into()).await;
        assert!(matches!(written, Err(StoreError::Internal { .. })), "{written:?}");
    }
    clock.broken.store(false, Ordering::SeqCst);
    assert_eq!(store.settle(&key, &held.token, "x".into()).await.unwrap(), Step::Done(held.fence));
}

/// Notes which threads read the clock.
#[derive(Debug, Default)]
struct NotingClock {
    clock: ManualClock,
    threads: Mutex<BTreeSet<String>>,
}

impl Clock for NotingClock {
    fn now(&self) -> Timestamp {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.threads.lock().unwrap().insert(name);
        self.clock.now()
    }
}

#[tokio::test]
async fn fault_29_lists_and_counts_keep_off_the_readers_of_claims() {
    let place = Place::new();
    let clock = Arc::new(NotingClock::default());
    let store = SqliteStore::open(place.config().clock(clock.clone())).unwrap();
    let threads = || std::mem::take(&mut *clock.threads.lock().unwrap());
    settled(&store, &command("a"), "done").await;
    threads();
    let (tenant, kind) = (Tenant::default(), KeyKind::Command);
    let list = ClaimQuery { tenant, kind, status: None, scope: None, after: None, max_claims: 10 };
    assert_eq!(store.list(&list).await.unwrap().claims.len(), 1);
    let _ = store.depth(&QueueName::outbox(), None).await.unwrap();
    assert_eq!(threads(), BTreeSet::from(["hapax-operator".to_owned()]));
    let _ = store.look(&command("a")).await.unwrap();
    assert_eq!(threads(), BTreeSet::from(["hapax-reader".to_owned()]));
}

/// Stands still in reader threads while it is held.
#[derive(Debug, Default)]
struct HeldInReaders {
    held: AtomicBool,
    waiting: AtomicBool,
    clock: ManualClock,
}

impl Clock for HeldInReaders {
    fn now(&self) -> Timestamp {
        if std::thread::current().name() == Some("hapax-reader") {
            while self.held.load(Ordering::SeqCst) {
                self.waiting.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.clock.now()
    }
}

#[tokio::test]
async fn fault_14_lease_renewed_after_the_snapshot_is_not_unknown() {
    let place = Place::new();
    let clock = Arc::new(HeldInReaders::default());
    let config = place.config().clock(clock.clone()).timeout(Duration::from_secs(60));
    let store = SqliteStore::open(config).unwrap();
    let (key, lease) = (command("a"), Duration::from_secs(10));
    let brief = ClaimRequest::new(lease).retention(Duration::from_secs(3600));
    let owner = ticket(store.claim(&key, &brief).await);
    clock.held.store(true, Ordering::SeqCst);
    let rival = tokio::spawn({
        let (store, key, ask) = (store.clone(), key.clone(), brief.with_fresh_token());
        async move { store.claim(&key, &ask).await }
    });
    while !clock.waiting.load(Ordering::SeqCst) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let extended = store.extend(&key, &owner.token, 10 * lease).await.unwrap();
    assert_eq!(extended, Step::Done(owner.fence));
    clock.clock.advance(2 * lease);
    clock.held.store(false, Ordering::SeqCst);
    let answer = rival.await.unwrap().unwrap();
    assert!(matches!(answer, Claimed::Busy { .. }), "{answer:?}");
}
