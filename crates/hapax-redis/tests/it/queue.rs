//! Queues on Redis: foreign types, slots, lost replies, and bounded work per call.

use std::slice::from_ref;
use std::time::Duration;

use crate::common::*;
use hapax_core::queue::{
    DeadQuery, Enqueued, ItemOutcome, LeaseRequest, QueueItem, QueueName, Resolved,
};
use hapax_core::{Queue, StoreError, Tenant};
use hapax_redis::RedisStore;
use hapax_testkit::{Redis, TcpProxy};

const KEYS: [&str; 7] = ["items", "bodies", "ready", "later", "leased", "done", "index"];

fn item(key: &str) -> QueueItem {
    QueueItem::new(&Tenant::default(), "topic", "the payload").key(key)
}

fn queue() -> QueueName {
    QueueName::new("mail").unwrap()
}

#[tokio::test]
async fn hole_18_queues_of_any_name_live_in_one_slot_each() {
    let (_cluster, store) = cluster();
    for name in ["plain", "a{b}c", "}{", "{", "{}", "%7B", "q:x"] {
        let queue = QueueName::new(name).unwrap();
        let items = [item("k"), item("k")];
        assert_eq!(store.enqueue(&queue, &items).await.unwrap(), [Enqueued::Accepted; 2]);
        let take = LeaseRequest::new(1, LONG);
        let leased = store.lease(&queue, &take).await.unwrap();
        assert_eq!(leased[0].item.id, items[0].id, "{name}");
        let done = store.ack(&queue, &take.token, &[items[0].id], LONG).await.unwrap();
        assert_eq!(done, [Resolved::Done]);
        assert_eq!(store.depth(&queue, None).await.unwrap().waiting, 1);
    }
}

/// An enqueue of which Redis has applied the first writes alone, as it may after two crashes.
#[tokio::test]
async fn name_without_an_item_does_not_hold_back_its_lane() {
    let (redis, store) = server();
    let [lost, next] = [item("k"), item("k")];
    let _ = store.enqueue(&queue(), from_ref(&lost)).await.unwrap();
    let id = lost.id.0.to_string();
    redis.cli(&["HDEL", "hapax:{q:mail}:items", &id]);
    redis.cli(&["ZREM", "hapax:{q:mail}:ready", &id]);
    let _ = store.enqueue(&queue(), from_ref(&next)).await.unwrap();
    let leased = store.lease(&queue(), &LeaseRequest::new(5, LONG)).await.unwrap();
    assert_eq!(leased.iter().map(|one| one.item.id).collect::<Vec<_>>(), [next.id]);
    assert_eq!(store.depth(&queue(), None).await.unwrap().waiting, 0);
    assert_eq!(store.enqueue(&queue(), from_ref(&lost)).await.unwrap(), [Enqueued::Accepted]);
}

#[tokio::test]
async fn queue_with_a_foreign_value_is_corrupt_and_unchanged() {
    let (redis, store) = server();
    let (take, items) = (LeaseRequest::new(1, LONG), [item("k"), item("k"), item("other")]);
    let _ = store.enqueue(&queue(), &items).await.unwrap();
    let held = store.lease(&queue(), &take).await.unwrap();
    for key in KEYS {
        let name = format!("hapax:{{q:mail}}:{key}");
        redis.cli(&["RENAME", &name, "aside"]);
        redis.cli(&["SET", &name, "foreign"]);
        let before = dump(&redis);
        let (id, token) = (held[0].item.id, &take.token);
        let answers = [
            store.enqueue(&queue(), &[item("k")]).await.map(drop),
            store.lease(&queue(), &LeaseRequest::new(5, LONG)).await.map(drop),
            store.renew(&queue(), token, LONG).await.map(drop),
            store.ack(&queue(), token, &[id], LONG).await.map(drop),
            store.retry(&queue(), token, id, LONG, "r").await.map(drop),
            store.bury(&queue(), token, id, "r").await.map(drop),
            store.requeue(&queue(), None, id).await.map(drop),
            store.discard(&queue(), None, id).await.map(drop),
            store.depth(&queue(), None).await.map(drop),
            store.dead(&queue(), None, &DeadQuery::new(1)).await.map(drop),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(StoreError::Corrupt { .. })), "{key}: {answer:?}");
        }
        assert_eq!(dump(&redis), before, "{key}");
        redis.cli(&["DEL", &name]);
        redis.cli(&["RENAME", "aside", &name]);
    }
    let done = store.ack(&queue(), &take.token, &[held[0].item.id], LONG).await.unwrap();
    assert_eq!(done, [Resolved::Done]);
}

async fn lossy() -> (Redis, RedisStore, TcpProxy, LeaseRequest, QueueItem) {
    let redis = Redis::start();
    let wire = TcpProxy::to(redis.port());
    let store = patient(&format!("redis://127.0.0.1:{}", wire.port()));
    // Loads the scripts, so that the dropped reply is that of the call itself and not a NOSCRIPT error.
    let (first, take) = (item("warm-up"), LeaseRequest::new(1, LONG));
    let _ = store.enqueue(&queue(), from_ref(&first)).await.unwrap();
    let _ = store.lease(&queue(), &take).await.unwrap();
    let _ = store.ack(&queue(), &take.token, &[first.id], LONG).await.unwrap();
    (redis, store, wire, LeaseRequest::new(1, LONG), item("k"))
}

#[tokio::test]
async fn queue_steps_with_lost_replies_are_recognised() {
    let (_redis, store, wire, take, item) = lossy().await;
    let id = item.id.to_string();
    wire.drop_next_answer_to(id.as_bytes());
    let enqueued = store.enqueue(&queue(), from_ref(&item)).await.unwrap();
    assert_eq!((enqueued, wire.dropped_answers()), (vec![Enqueued::Accepted], 1));

    wire.drop_next_answer_to(b":leased");
    let leased = store.lease(&queue(), &take).await.unwrap();
    assert_eq!((leased.len(), leased[0].attempt, wire.dropped_answers()), (1, 1, 2));

    wire.drop_next_answer_to(id.as_bytes());
    let done = store.ack(&queue(), &take.token, &[item.id], LONG).await.unwrap();
    assert_eq!((done, wire.dropped_answers()), (vec![Resolved::Done], 3));
}

/// A retry does not store its token, so the repeated call cannot be recognised: it returns an error, never *lost*.
#[tokio::test]
async fn queue_retry_with_a_lost_reply_is_never_lost() {
    let (_redis, store, wire, take, item) = lossy().await;
    let _ = store.enqueue(&queue(), from_ref(&item)).await.unwrap();
    let _ = store.lease(&queue(), &take).await.unwrap();
    wire.drop_next_answer_to(item.id.to_string().as_bytes());
    let answer = store.retry(&queue(), &take.token, item.id, Duration::ZERO, "r").await;
    assert!(matches!(answer, Err(StoreError::Unavailable { .. })), "{answer:?}");
    assert_eq!(store.lease(&queue(), &LeaseRequest::new(1, LONG)).await.unwrap()[0].attempt, 2);
}

/// Rows of a busy queue are forgotten as fast as they are added, however many a call carries.
#[tokio::test]
async fn fault_33_done_items_do_not_pile_up() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let retention = Duration::from_millis(1);
    for _ in 0..5 {
        let items: Vec<_> = (0..1000).map(|i| item(&i.to_string())).collect();
        let _ = store.enqueue(&queue(), &items).await.unwrap();
        let take = LeaseRequest::new(1000, LONG);
        let leased = store.lease(&queue(), &take).await.unwrap();
        let outcomes: Vec<_> =
            leased.iter().map(|leased| (leased.item.id, ItemOutcome::Ack { retention })).collect();
        let _ = store.resolve(&queue(), &take.token, &outcomes).await.unwrap();
        // The server's own clock has to pass the retention.
        tokio::time::sleep(5 * retention).await;
    }
    let kept: u32 = redis.cli(&["HLEN", "hapax:{q:mail}:items"]).parse().unwrap();
    assert!(kept <= 2500, "{kept} items are kept");
}

/// Done items leave nothing after their retention, and a call removes a hundred of them, and two for each of its own.
#[tokio::test]
async fn queue_removes_expired_items_in_small_steps() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let items: Vec<_> = (0..250).map(|i| item(&i.to_string())).collect();
    let _ = store.enqueue(&queue(), &items).await.unwrap();
    let take = LeaseRequest::new(250, LONG);
    let leased = store.lease(&queue(), &take).await.unwrap();
    let retention = Duration::from_millis(1);
    let outcomes: Vec<_> =
        leased.iter().map(|leased| (leased.item.id, ItemOutcome::Ack { retention })).collect();
    let _ = store.resolve(&queue(), &take.token, &outcomes).await.unwrap();
    let done = || redis.cli(&["ZCARD", "hapax:{q:mail}:done"]).parse::<u32>().unwrap();
    let mut left = done();
    while left > 0 {
        assert!(store.lease(&queue(), &LeaseRequest::new(1, LONG)).await.unwrap().is_empty());
        assert!(done() + 102 >= left, "more than a hundred at once");
        left = done();
    }
    let keys = redis.cli(&["KEYS", "hapax:{q:*"]);
    // The marker of the enqueue expires by itself.
    let kept: Vec<_> = keys.lines().filter(|key| !key.contains(":did:")).collect();
    assert_eq!(kept, ["hapax:{q:mail}:items"], "only the last number is left");
    assert_eq!(redis.cli(&["HLEN", "hapax:{q:mail}:items"]), "1");
}

#[tokio::test]
async fn fault_42_lost_list_of_queues_is_made_again() {
    let (redis, store) = server();
    let _ = store.enqueue(&queue(), &[item("a"), item("b")]).await.unwrap();
    assert_eq!(store.queues().await.unwrap(), [queue()]);
    redis.cli(&["DEL", "hapax:{queues}"]);
    assert!(store.queues().await.unwrap().is_empty());
    // Another process has not stored the name yet.
    let other = patient(&redis.url());
    assert_eq!(other.lease(&queue(), &LeaseRequest::new(1, LONG)).await.unwrap().len(), 1);
    let listed = async {
        while store.queues().await.unwrap() != [queue()] {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, listed).await.expect("the queue is listed again");
}

/// What a failover may do to a queue, by a server that comes back with an older snapshot.
#[tokio::test]
async fn queue_after_a_loss_sends_again_under_the_same_id() {
    let (redis, store) = server_with(&["--appendonly", "no"]);
    let (first, second) = (item("a"), item("b"));
    let _ = store.enqueue(&queue(), from_ref(&first)).await.unwrap();
    let take = LeaseRequest::new(1, Duration::from_millis(1));
    let before = store.lease(&queue(), &take).await.unwrap().remove(0);
    assert_eq!(redis.cli(&["SAVE"]), "OK");
    let done = store.ack(&queue(), &take.token, &[first.id], LONG).await.unwrap();
    assert_eq!(done, [Resolved::Done]);
    let _ = store.enqueue(&queue(), from_ref(&second)).await.unwrap();
    redis.kill();
    redis.restart();

    let (mail, take) = (queue(), LeaseRequest::new(5, LONG));
    let again = until_it_works(|| store.lease(&mail, &take)).await;
    assert_eq!(again.len(), 1, "the later enqueue is lost");
    assert_eq!(again[0].item.id, first.id, "the ack is lost, and the inbox knows this id");
    assert!(again[0].fence > before.fence);
    let enqueued = store.enqueue(&queue(), from_ref(&second)).await.unwrap();
    assert_eq!(enqueued, [Enqueued::Accepted], "whoever repeats the lost enqueue is heard");
}
