//! Records that are read and written many in one statement: calls that begin together on one thread are one batch.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Expect, Key, Put, Record, Records, Tenant, Version};
use hapax_postgres::{HapaxTransaction, PostgresStore};
use tokio::task::JoinSet;

use crate::{LONG, SERVER, application, open};

fn record(name: impl ToString) -> Key {
    Key::record(&Tenant::default(), &name.to_string()).unwrap()
}

type PutArguments = (Key, Bytes, Expect, Option<Duration>);

/// The answers in the order of the calls.
async fn put_together(store: &PostgresStore, calls: Vec<PutArguments>) -> Vec<Put> {
    let mut running = JoinSet::new();
    for (at, (key, value, expect, ttl)) in calls.into_iter().enumerate() {
        let store = store.clone();
        running.spawn(async move { (at, store.put(&key, value, &expect, ttl).await.unwrap()) });
    }
    in_order(running).await
}

async fn get_together(store: &PostgresStore, keys: Vec<Key>) -> Vec<Option<Record>> {
    let mut running = JoinSet::new();
    for (at, key) in keys.into_iter().enumerate() {
        let store = store.clone();
        running.spawn(async move { (at, store.get(&key).await.unwrap()) });
    }
    in_order(running).await
}

async fn in_order<T: 'static>(running: JoinSet<(usize, T)>) -> Vec<T> {
    let mut answers = running.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn version(put: &Put) -> &Version {
    match put {
        Put::Stored { version, .. } => version,
        Put::Conflict => panic!("expected a stored record"),
    }
}

fn is_created(put: &Put) -> bool {
    matches!(put, Put::Stored { created: true, .. })
}

#[tokio::test]
async fn records_together_keep_their_own_values_and_ends() {
    let store = open(&SERVER.database("records_own"));
    let ttl = |n: u32| n.is_multiple_of(2).then_some(LONG);
    let calls = (0..100).map(|n| (record(n), Bytes::from(n.to_string()), Expect::Absent, ttl(n)));
    let first = put_together(&store, calls.collect()).await;
    assert!(first.iter().all(is_created));
    // One key that does not exist, and one that is asked for twice.
    let keys = (0..100).map(record).chain([record("none"), record(7)]).collect();
    let found = get_together(&store, keys).await;
    assert_eq!(found[100], None);
    assert_eq!(found[101].as_ref().unwrap().value, "7");
    for n in 0..100_u32 {
        let found = found[n as usize].as_ref().unwrap();
        assert_eq!(found.value, n.to_string());
        assert_eq!(&found.version, version(&first[n as usize]));
        assert_eq!(found.expires_in.is_some(), ttl(n).is_some());
    }
    // Over the right version, over a wrong one, over any, and where there must be none.
    let expect = |n: usize| match n % 4 {
        0 => Expect::Version(version(&first[n]).clone()),
        1 => Expect::Version(version(&first[0]).clone()),
        2 => Expect::Any,
        _ => Expect::Absent,
    };
    let calls = (0..100).map(|n| (record(n), Bytes::from("new"), expect(n), None)).collect();
    let second = put_together(&store, calls).await;
    let found = get_together(&store, (0..100).map(record).collect()).await;
    for n in 0..100 {
        let found = found[n].as_ref().unwrap();
        match (n % 4, &second[n]) {
            (0 | 2, Put::Stored { version: new, created: false }) => {
                assert_eq!((&found.value[..], &found.version), (&b"new"[..], new));
                assert_ne!(new, version(&first[n]));
                // Without a time to live it keeps its end.
                assert!(found.expires_in.is_some_and(|left| left > LONG / 2));
            }
            (1 | 3, Put::Conflict) => assert_eq!(&found.version, version(&first[n])),
            (_, other) => panic!("{n}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn records_together_of_one_version_have_one_winner() {
    let store = open(&SERVER.database("records_one"));
    for round in 0..3 {
        let key = record(round);
        let first = store.put(&key, "0".into(), &Expect::Absent, None).await.unwrap();
        let expect = Expect::Version(version(&first).clone());
        let calls =
            (0..50).map(|n| (key.clone(), Bytes::from(n.to_string()), expect.clone(), None));
        let answers = put_together(&store, calls.collect()).await;
        let winners: Vec<_> = (0..50).filter(|n| answers[*n] != Put::Conflict).collect();
        let found = store.get(&key).await.unwrap().unwrap();
        assert_eq!(winners.len(), 1);
        assert_eq!(found.value, winners[0].to_string());
        assert_eq!(&found.version, version(&answers[winners[0]]));
    }
}

#[tokio::test]
async fn records_together_of_one_key_are_all_written() {
    let store = open(&SERVER.database("records_same"));
    let calls = (0..40).map(|n| (record(n % 2), Bytes::from("v"), Expect::Any, None)).collect();
    let answers = put_together(&store, calls).await;
    assert_eq!(answers.iter().filter(|answer| is_created(answer)).count(), 2);
    let versions: HashSet<_> = answers.iter().map(version).collect();
    assert_eq!(versions.len(), 40);
}

#[tokio::test]
async fn records_together_count_an_expired_one_as_absent() {
    let store = open(&SERVER.database("records_ended"));
    let soon = Some(Duration::from_millis(1));
    let calls = (0..9).map(|n| (record(n), Bytes::from("old"), Expect::Any, soon)).collect();
    let old = put_together(&store, calls).await;
    while get_together(&store, (0..9).map(record).collect()).await.iter().any(Option::is_some) {}
    let expect = |n: usize| match n % 3 {
        0 => Expect::Absent,
        1 => Expect::Any,
        _ => Expect::Version(version(&old[n]).clone()),
    };
    let calls = (0..9).map(|n| (record(n), Bytes::from("new"), expect(n), None)).collect();
    let new = put_together(&store, calls).await;
    let found = get_together(&store, (0..9).map(record).collect()).await;
    for n in 0..9 {
        assert_eq!(is_created(&new[n]), n % 3 != 2);
        assert_eq!(found[n].is_some(), n % 3 != 2);
        assert!(found[n].iter().all(|found| found.expires_in.is_none()));
    }
}

#[tokio::test]
async fn records_together_are_read_whole_however_large() {
    let store = open(&SERVER.database("records_large"));
    let large = Bytes::from(vec![7; 700 << 10]);
    for n in 0..12 {
        let put = store.put(&record(n), large.clone(), &Expect::Absent, None).await.unwrap();
        assert!(is_created(&put));
    }
    let found = get_together(&store, (0..13).map(record).collect()).await;
    assert!(found[..12].iter().all(|found| found.as_ref().unwrap().value == large));
    assert_eq!(found[12], None);
}

#[tokio::test]
async fn records_together_wait_for_no_open_transaction_but_their_own() {
    let (url, mut client) = application("records_locked").await;
    let store = open(&url);
    let mut tx = client.transaction().await.unwrap();
    let own = tx.hapax().put(&record(0), "tx".into(), &Expect::Absent, None).await.unwrap();
    assert!(is_created(&own));
    let mut running = JoinSet::new();
    for n in 0..10 {
        let store = store.clone();
        running.spawn(async move {
            (n, store.put(&record(n), "v".into(), &Expect::Any, None).await.unwrap())
        });
    }
    for _ in 0..9 {
        let (n, put) = running.join_next().await.unwrap().unwrap();
        assert!(n != 0 && is_created(&put));
    }
    tx.commit().await.unwrap();
    let (n, put) = running.join_next().await.unwrap().unwrap();
    assert!(n == 0 && matches!(put, Put::Stored { created: false, .. }));
    assert_eq!(store.get(&record(0)).await.unwrap().unwrap().value, "v");
}
