//! Items of a key are leased in order; other items are independent.

use std::time::Duration;

use hapax_core::queue::{DeadQuery, QueueItem};

use super::{ALL, TestQueue, ack, bury, retry, retry_without_key, sorted, uncounted_retry};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![
    TestQueue::new;
    items_of_a_key_are_leased_in_the_order_of_enqueueing,
    one_lease_takes_several_items_of_a_key_in_order,
    later_item_waits_while_an_earlier_one_is_in_flight,
    later_item_waits_while_an_earlier_one_awaits_its_retry,
    later_item_waits_while_an_earlier_one_is_delayed,
    retried_item_comes_before_later_ones,
    item_given_back_comes_before_later_ones,
    lapsed_item_comes_before_later_ones,
    later_item_waits_behind_a_dead_one_that_blocks,
    later_item_follows_a_dead_one_that_does_not_block,
    other_keys_are_not_held_back,
    items_without_a_key_never_wait_for_others,
    equal_keys_of_two_tenants_are_separate,
    items_leased_together_hold_back_later_ones,
    many_held_back_items_do_not_hide_due_ones,
    item_due_before_an_earlier_one_does_not_hold_it_back,
    items_behind_a_dead_one_do_not_hide_other_retries,
    retry_without_its_place_lets_later_items_pass,
    item_that_left_its_key_is_leased_beside_it,
    item_that_left_its_key_blocks_nothing_when_dead,
];

async fn items_of_a_key_are_leased_in_the_order_of_enqueueing(queue: TestQueue) {
    let other = queue.reopened().await;
    let mut ids = queue.keyed(["k", "k", "k"]).await.to_vec();
    ids.extend(other.keyed(["k", "k"]).await);
    ids.extend(queue.keyed(["k"]).await);
    for (i, id) in ids.into_iter().enumerate() {
        let node = if i % 2 == 0 { &queue } else { &other };
        let batch = node.lease(1).await;
        assert_eq!(batch.ids(), [id]);
        node.finish(&batch).await;
    }
}

/// The ids sort against the order of enqueueing, so that a store that orders by id fails.
async fn one_lease_takes_several_items_of_a_key_in_order(queue: TestQueue) {
    let mut items: Vec<_> = (0..8).map(|_| queue.item("t").key("k")).collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.id));
    let ids = queue.accepted(&items).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let batch = queue.lease(5).await;
        assert!(!batch.items.is_empty());
        seen.extend(batch.ids());
        queue.finish(&batch).await;
    }
    assert_eq!(seen, ids);
}

async fn later_item_waits_while_an_earlier_one_is_in_flight(queue: TestQueue) {
    let other = queue.reopened().await;
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [first]);
    assert!(queue.lease(ALL).await.items.is_empty());
    assert!(other.lease(ALL).await.items.is_empty());
    queue.finish(&batch).await;
    assert_eq!(other.lease(ALL).await.ids(), [second, third]);
}

async fn later_item_waits_while_an_earlier_one_awaits_its_retry(queue: TestQueue) {
    let [first, second] = queue.keyed(["k", "k"]).await;
    let batch = queue.lease(1).await;
    queue.done(&batch, first, retry(LONG)).await;
    assert!(queue.lease(ALL).await.items.is_empty());
    assert_eq!(queue.counts().await, (2, 0, 0));
    assert_ne!(first, second);
}

async fn later_item_waits_while_an_earlier_one_is_delayed(queue: TestQueue) {
    let (delayed, later) = (queue.item("t").key("k").delay(LONG), queue.item("t").key("k"));
    let free = queue.item("t").key("free");
    queue.accepted(&[delayed, later, free.clone()]).await;
    assert_eq!(queue.lease(ALL).await.ids(), [free.id]);
}

async fn retried_item_comes_before_later_ones(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    for after in [Duration::ZERO, SHORT] {
        let batch = queue.lease(1).await;
        assert_eq!(batch.ids(), [first]);
        queue.done(&batch, first, retry(after)).await;
        if after > Duration::ZERO {
            queue.context.outlive(after).await;
        }
    }
    let batch = queue.lease(ALL).await;
    assert_eq!((batch.ids(), batch.attempts()), (vec![first, second, third], vec![3, 1, 1]));
}

async fn item_given_back_comes_before_later_ones(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lease(2).await;
    assert_eq!(batch.ids(), [first, second]);
    let outcomes = [first, second].map(|id| (id, uncounted_retry(Duration::ZERO)));
    let _ = queue.resolve(&batch.token, &outcomes).await;
    assert_eq!(queue.lease(ALL).await.ids(), [first, second, third]);
}

async fn lapsed_item_comes_before_later_ones(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lapsed(2).await;
    assert_eq!(batch.ids(), [first, second]);
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [first]);
    assert!(queue.lease(ALL).await.items.is_empty(), "the second lapsed, but stands behind");
    queue.finish(&batch).await;
    let batch = queue.lease(ALL).await;
    assert_eq!((batch.ids(), batch.attempts()), (vec![second, third], vec![2, 1]));
}

async fn later_item_waits_behind_a_dead_one_that_blocks(queue: TestQueue) {
    let [first, second] = queue.keyed(["k", "k"]).await;
    queue.done(&queue.lease(1).await, first, bury(true)).await;
    assert!(queue.lease(ALL).await.items.is_empty());
    let third = queue.keyed(["k"]).await[0];
    assert!(queue.reopened().await.lease(ALL).await.items.is_empty(), "also what came after");
    assert_eq!(queue.counts().await, (2, 0, 1));
    assert_ne!(second, third);
}

async fn later_item_follows_a_dead_one_that_does_not_block(queue: TestQueue) {
    let [first, second] = queue.keyed(["k", "k"]).await;
    queue.done(&queue.lease(1).await, first, bury(false)).await;
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [second]);
    let [third] = queue.keyed(["k"]).await;
    assert!(queue.lease(ALL).await.items.is_empty());
    queue.finish(&batch).await;
    assert_eq!(queue.lease(ALL).await.ids(), [third]);
}

async fn other_keys_are_not_held_back(queue: TestQueue) {
    let [flying, retried, dead, lapsed] = queue.keyed(["a", "b", "c", "d"]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, retried, retry(LONG)).await;
    queue.done(&batch, dead, bury(true)).await;
    let behind = queue.keyed(["a", "b", "c", "d"]).await;
    let ids = queue.accepted(&[queue.item("t").key("e"), queue.item("t")]).await;
    let free = queue.lease(ALL).await;
    assert_eq!(free.sorted(), sorted(&ids));
    queue.done(&batch, flying, ack(LONG)).await;
    assert_eq!(queue.lease(ALL).await.ids(), [behind[0]]);
    queue.done(&batch, lapsed, ack(LONG)).await;
    assert_eq!(queue.lease(ALL).await.ids(), [behind[3]]);
}

async fn items_without_a_key_never_wait_for_others(queue: TestQueue) {
    let ids = queue.accepted(&[(); 4].map(|()| queue.item("t"))).await;
    let batch = queue.lease(3).await;
    let [a, b, c] = batch.ids()[..] else { panic!("three were asked for and due") };
    queue.done(&batch, a, retry(LONG)).await;
    queue.done(&batch, b, bury(true)).await;
    let rest = queue.lease(ALL).await;
    assert_eq!(sorted(&[vec![a, b, c], rest.ids()].concat()), sorted(&ids));
}

async fn equal_keys_of_two_tenants_are_separate(queue: TestQueue) {
    let guest = queue.context.tenant.scoped("guest").unwrap();
    let theirs = |topic| QueueItem::new(&guest, topic, "{}").key("k");
    let mine = queue.item("t").key("k");
    let items = [mine.clone(), theirs("1"), theirs("2")];
    let ids = queue.accepted(&items).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, ids[0], bury(true)).await;
    queue.done(&batch, ids[1], retry(Duration::ZERO)).await;
    queue.done(&batch, ids[2], retry(Duration::ZERO)).await;
    queue.accepted(&[queue.item("t").key("k")]).await;
    assert_eq!(queue.lease(ALL).await.ids(), ids[1..]);
}

/// A worker has two items of a key and gives the first back: the third waits for both.
async fn items_leased_together_hold_back_later_ones(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lease(2).await;
    assert_eq!(batch.ids(), [first, second]);
    queue.done(&batch, first, retry(Duration::ZERO)).await;
    let other = queue.lease(ALL).await;
    assert_eq!(other.ids(), [first]);
    queue.finish(&other).await;
    assert!(queue.lease(ALL).await.items.is_empty());
    queue.done(&batch, second, ack(LONG)).await;
    assert_eq!(queue.lease(ALL).await.ids(), [third]);
}

/// A store that searches only the oldest few items does not find the free one.
async fn many_held_back_items_do_not_hide_due_ones(queue: TestQueue) {
    let [dead] = queue.keyed(["k"]).await;
    queue.done(&queue.lease(1).await, dead, bury(true)).await;
    let behind: Vec<_> = (0..300).map(|_| queue.item("t").key("k")).collect();
    queue.accepted(&behind).await;
    let delayed: Vec<_> = (0..300).map(|_| queue.item("t").delay(LONG)).collect();
    queue.accepted(&delayed).await;
    let [free] = queue.keyed(["free"]).await;
    assert_eq!(queue.lease(1).await.ids(), [free]);
}

/// A worker retries a failed item later, and gives the following ones back at once.
async fn item_due_before_an_earlier_one_does_not_hold_it_back(queue: TestQueue) {
    let ids = queue.keyed(["k", "k", "k", "k", "k"]).await;
    let batch = queue.lease(ALL).await;
    let mut outcomes = ids.map(|id| (id, uncounted_retry(Duration::from_millis(1))));
    outcomes[0].1 = retry(SHORT);
    let _ = queue.resolve(&batch.token, &outcomes).await;
    queue.context.outlive(SHORT).await;
    assert_eq!(queue.lease(2).await.ids(), ids[..2]);
}

async fn items_behind_a_dead_one_do_not_hide_other_retries(queue: TestQueue) {
    let ids = queue.keyed(["k", "k", "k", "k", "other"]).await;
    let batch = queue.lease(ALL).await;
    let mut outcomes = ids.map(|id| (id, uncounted_retry(Duration::ZERO)));
    outcomes[0].1 = bury(true);
    outcomes[4].1 = retry(SHORT);
    let _ = queue.resolve(&batch.token, &outcomes).await;
    queue.context.outlive(SHORT).await;
    assert_eq!(queue.lease(2).await.ids(), ids[4..]);
}

async fn retry_without_its_place_lets_later_items_pass(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    queue.done(&queue.lease(1).await, first, retry_without_key(LONG)).await;
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [second], "it does not wait for the first one's retry");
    assert!(queue.lease(ALL).await.items.is_empty(), "the rest keep their order");
    assert_eq!(queue.counts().await, (2, 1, 0));
    queue.finish(&batch).await;
    assert_eq!(queue.lease(ALL).await.ids(), [third]);
}

async fn item_that_left_its_key_is_leased_beside_it(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lease(2).await;
    assert_eq!(batch.ids(), [first, second]);
    queue.done(&batch, first, retry_without_key(Duration::ZERO)).await;
    let left = queue.lease(ALL).await;
    assert_eq!(left.ids(), [first], "the third still waits for the second");
    let leased = &left.items[0];
    assert_eq!((leased.attempt, leased.item.key.as_deref()), (2, None));
    queue.done(&batch, second, ack(LONG)).await;
    assert_eq!(queue.lease(ALL).await.ids(), [third], "the first is in flight and has no key");
}

async fn item_that_left_its_key_blocks_nothing_when_dead(queue: TestQueue) {
    let [first, second] = queue.keyed(["k", "k"]).await;
    queue.done(&queue.lease(1).await, first, retry_without_key(Duration::ZERO)).await;
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.sorted(), sorted(&[first, second]));
    queue.done(&batch, first, bury(true)).await;
    queue.done(&batch, second, ack(LONG)).await;
    let [third] = queue.keyed(["k"]).await;
    assert_eq!(queue.lease(ALL).await.ids(), [third]);
    let dead = queue.context.store.dead(&queue.name, None, &DeadQuery::new(10)).await.unwrap();
    assert_eq!((dead.len(), dead[0].key.as_deref()), (1, None));
    assert!(queue.context.store.requeue(&queue.name, None, first).await.unwrap());
    assert_eq!(queue.lease(ALL).await.ids(), [first]);
}
