//! Keys that programs without hapax use, too.

use std::time::Duration;

use crate::common::*;
use hapax_core::claims::ClaimState;
use hapax_core::{
    ClaimRequest, Claimed, Claims, Deleted, Expect, GiveBack, Put, Records, Step, StoreError, Token,
};

const LOCK: &str = "processing:user:U1";
const RECORD: &str = "user:U1:last_transaction";

#[tokio::test]
async fn verbatim_lock_is_taken_by_set_nx_ex() {
    let (redis, store) = server();
    let ticket = granted(&store, &lock(LOCK), &ClaimRequest::new(Duration::from_secs(30))).await;
    // The command of a program without hapax.
    assert_eq!(redis.cli(&["SET", LOCK, "1", "NX", "EX", "5"]), "");
    let left: u64 = redis.cli(&["TTL", LOCK]).parse().unwrap();
    assert!((1..=30).contains(&left));
    let _ = store.give_back(&lock(LOCK), &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(redis.cli(&["SET", LOCK, "1", "NX", "EX", "5"]), "OK");
}

#[tokio::test]
async fn foreign_value_counts_as_held_and_is_never_changed() {
    let (redis, store) = server();
    let values: [&[&str]; 5] = [
        &["SET", LOCK, "1", "PX", "60000"],
        &["SET", LOCK, "", "PX", "60000"],
        &["SET", LOCK, "hapax1 P broken", "PX", "60000"],
        &["RPUSH", LOCK, "a"],
        &["HSET", LOCK, "a", "b"],
    ];
    for value in values {
        redis.cli(&["DEL", LOCK]);
        redis.cli(value);
        redis.cli(&["PEXPIRE", LOCK, "60000"]);
        let before = redis.cli(&["DUMP", LOCK]);
        let ask = ClaimRequest::new(LONG);
        let Claimed::Busy { lease_left } = store.claim(&lock(LOCK), &ask).await.unwrap() else {
            panic!("{value:?} was taken over");
        };
        assert!(lease_left > Duration::from_secs(10) && lease_left <= Duration::from_secs(60));
        for token in [ask.token, Token::presented("1"), Token::presented("")] {
            let key = lock(LOCK);
            let forget = store.give_back(&key, &token, GiveBack::Forget).await.unwrap();
            let keep = store.give_back(&key, &token, GiveBack::Keep).await.unwrap();
            let extend = store.extend(&key, &token, LONG).await.unwrap();
            let settle = store.settle(&key, &token, "x".into()).await.unwrap();
            assert_eq!([forget, keep, extend, settle], [Step::Lost; 4]);
        }
        let view = store.look(&lock(LOCK)).await.unwrap().unwrap();
        assert_eq!(view.retention, None);
        assert!(matches!(view.state, ClaimState::Pending { .. }));
        assert_eq!((view.fence, view.granted_ago), (None, None));
        assert_eq!(redis.cli(&["DUMP", LOCK]), before);
    }
}

#[tokio::test]
async fn foreign_lock_without_expiry_is_busy_for_an_hour() {
    let (redis, store) = server();
    redis.cli(&["SET", LOCK, "1"]);
    let answer = store.claim(&lock(LOCK), &ClaimRequest::new(LONG)).await.unwrap();
    assert_eq!(answer, Claimed::Busy { lease_left: LONG });
}

#[tokio::test]
async fn lock_replaced_by_a_foreign_program_is_lost() {
    let (redis, store) = server();
    let ticket = granted(&store, &lock(LOCK), &ClaimRequest::new(LONG)).await;
    redis.cli(&["SET", LOCK, "theirs", "EX", "60"]);
    let step = store.give_back(&lock(LOCK), &ticket.token, GiveBack::Forget).await.unwrap();
    assert_eq!(step, Step::Lost);
    assert_eq!(redis.cli(&["GET", LOCK]), "theirs");
}

#[tokio::test]
async fn lock_ttl_in_milliseconds_is_exact() {
    let (redis, store) = server();
    granted(&store, &lock(LOCK), &ClaimRequest::new(Duration::from_millis(60_500))).await;
    let left: u64 = redis.cli(&["PTTL", LOCK]).parse().unwrap();
    assert!((30_000..=60_500).contains(&left));
}

#[tokio::test]
async fn verbatim_record_is_plain_text_versioned_by_digest() {
    let (redis, store) = server();
    let key = record(RECORD);
    let put = store.put(&key, r#"{"n":1}"#.into(), &Expect::Absent, Some(LONG)).await.unwrap();
    let Put::Stored { version: first, created: true } = put else { panic!("{put:?}") };
    assert_eq!(redis.cli(&["GET", RECORD]), r#"{"n":1}"#);
    assert_eq!(store.get(&key).await.unwrap().unwrap().version, first);

    redis.cli(&["SET", RECORD, r#"{"n":2}"#, "KEEPTTL"]);
    let found = store.get(&key).await.unwrap().unwrap();
    assert_eq!(found.value, r#"{"n":2}"#);
    assert_ne!(found.version, first);
    let late = Expect::Version(first);
    assert_eq!(store.put(&key, "3".into(), &late, None).await.unwrap(), Put::Conflict);
    assert_eq!(store.delete(&key, &late).await.unwrap(), Deleted::Conflict);

    let now = Expect::Version(found.version);
    let put = store.put(&key, r#"{"n":3}"#.into(), &now, None).await.unwrap();
    assert!(matches!(put, Put::Stored { created: false, .. }));
    assert_eq!(redis.cli(&["GET", RECORD]), r#"{"n":3}"#);
    let left: i64 = redis.cli(&["TTL", RECORD]).parse().unwrap();
    assert!(left > 0, "the TTL was lost");
}

#[tokio::test]
async fn record_with_a_foreign_value_is_corrupt_and_unchanged() {
    let (redis, store) = server();
    let own = "hapax:{default:record::r}";
    redis.cli(&["RPUSH", RECORD, "a"]);
    redis.cli(&["SET", own, "not written by hapax"]);
    for key in [record(RECORD), record("r")] {
        let get = store.get(&key).await.map(drop);
        let put = store.put(&key, "x".into(), &Expect::Any, None).await.map(drop);
        let delete = store.delete(&key, &Expect::Any).await.map(drop);
        for answer in [get, put, delete] {
            assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{answer:?}");
        }
    }
    assert_eq!(redis.cli(&["LRANGE", RECORD, "0", "-1"]), "a");
    assert_eq!(redis.cli(&["GET", own]), "not written by hapax");
}
