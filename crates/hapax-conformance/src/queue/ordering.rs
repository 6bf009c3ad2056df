//! Order per key, and nobody else's.

use std::time::Duration;

use hapax_core::queue::QueueItem;

use super::{ALL, Desk, ack, bury, retry, sorted, uncounted_retry};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
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
];

async fn items_of_a_key_are_leased_in_the_order_of_enqueueing(s: Scene) {
    let desk = Desk::new(s);
    let other = desk.reopened().await;
    let mut ids = desk.keyed(["k", "k", "k"]).await.to_vec();
    ids.extend(other.keyed(["k", "k"]).await);
    ids.extend(desk.keyed(["k"]).await);
    for (i, id) in ids.into_iter().enumerate() {
        let node = if i % 2 == 0 { &desk } else { &other };
        let hand = node.lease(1).await;
        assert_eq!(hand.ids(), [id]);
        node.finish(&hand).await;
    }
}

/// Ids that sort against the order of enqueueing, so that neither order can stand for the other.
async fn one_lease_takes_several_items_of_a_key_in_order(s: Scene) {
    let desk = Desk::new(s);
    let mut items: Vec<_> = (0..8).map(|_| desk.item("t").key("k")).collect();
    items.sort_by_key(|item| std::cmp::Reverse(item.id));
    let ids = desk.accepted(&items).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let hand = desk.lease(5).await;
        assert!(!hand.items.is_empty());
        seen.extend(hand.ids());
        desk.finish(&hand).await;
    }
    assert_eq!(seen, ids);
}

async fn later_item_waits_while_an_earlier_one_is_in_flight(s: Scene) {
    let desk = Desk::new(s);
    let other = desk.reopened().await;
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    let hand = desk.lease(1).await;
    assert_eq!(hand.ids(), [first]);
    assert!(desk.lease(ALL).await.items.is_empty());
    assert!(other.lease(ALL).await.items.is_empty());
    desk.finish(&hand).await;
    assert_eq!(other.lease(ALL).await.ids(), [second, third]);
}

async fn later_item_waits_while_an_earlier_one_awaits_its_retry(s: Scene) {
    let desk = Desk::new(s);
    let [first, second] = desk.keyed(["k", "k"]).await;
    let hand = desk.lease(1).await;
    desk.done(&hand, first, retry(LONG)).await;
    assert!(desk.lease(ALL).await.items.is_empty());
    assert_eq!(desk.counts().await, (2, 0, 0));
    assert_ne!(first, second);
}

async fn later_item_waits_while_an_earlier_one_is_delayed(s: Scene) {
    let desk = Desk::new(s);
    let (delayed, later) = (desk.item("t").key("k").delay(LONG), desk.item("t").key("k"));
    let free = desk.item("t").key("free");
    desk.accepted(&[delayed, later, free.clone()]).await;
    assert_eq!(desk.lease(ALL).await.ids(), [free.id]);
}

async fn retried_item_comes_before_later_ones(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    for after in [Duration::ZERO, SHORT] {
        let hand = desk.lease(1).await;
        assert_eq!(hand.ids(), [first]);
        desk.done(&hand, first, retry(after)).await;
        if after > Duration::ZERO {
            desk.s.outlive(after).await;
        }
    }
    let hand = desk.lease(ALL).await;
    assert_eq!((hand.ids(), hand.attempts()), (vec![first, second, third], vec![3, 1, 1]));
}

async fn item_given_back_comes_before_later_ones(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    let hand = desk.lease(2).await;
    assert_eq!(hand.ids(), [first, second]);
    let outcomes = [first, second].map(|id| (id, uncounted_retry(Duration::ZERO)));
    let _ = desk.resolve(&hand.token, &outcomes).await;
    assert_eq!(desk.lease(ALL).await.ids(), [first, second, third]);
}

async fn lapsed_item_comes_before_later_ones(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    let hand = desk.lapsed(2).await;
    assert_eq!(hand.ids(), [first, second]);
    let hand = desk.lease(1).await;
    assert_eq!(hand.ids(), [first]);
    assert!(desk.lease(ALL).await.items.is_empty(), "the second lapsed, but stands behind");
    desk.finish(&hand).await;
    let hand = desk.lease(ALL).await;
    assert_eq!((hand.ids(), hand.attempts()), (vec![second, third], vec![2, 1]));
}

async fn later_item_waits_behind_a_dead_one_that_blocks(s: Scene) {
    let desk = Desk::new(s);
    let [first, second] = desk.keyed(["k", "k"]).await;
    desk.done(&desk.lease(1).await, first, bury(true)).await;
    assert!(desk.lease(ALL).await.items.is_empty());
    let third = desk.keyed(["k"]).await[0];
    assert!(desk.reopened().await.lease(ALL).await.items.is_empty(), "also what came after");
    assert_eq!(desk.counts().await, (2, 0, 1));
    assert_ne!(second, third);
}

async fn later_item_follows_a_dead_one_that_does_not_block(s: Scene) {
    let desk = Desk::new(s);
    let [first, second] = desk.keyed(["k", "k"]).await;
    desk.done(&desk.lease(1).await, first, bury(false)).await;
    let hand = desk.lease(1).await;
    assert_eq!(hand.ids(), [second]);
    let [third] = desk.keyed(["k"]).await;
    assert!(desk.lease(ALL).await.items.is_empty());
    desk.finish(&hand).await;
    assert_eq!(desk.lease(ALL).await.ids(), [third]);
}

async fn other_keys_are_not_held_back(s: Scene) {
    let desk = Desk::new(s);
    let [flying, retried, dead, lapsed] = desk.keyed(["a", "b", "c", "d"]).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, retried, retry(LONG)).await;
    desk.done(&hand, dead, bury(true)).await;
    let behind = desk.keyed(["a", "b", "c", "d"]).await;
    let ids = desk.accepted(&[desk.item("t").key("e"), desk.item("t")]).await;
    let free = desk.lease(ALL).await;
    assert_eq!(free.sorted(), sorted(&ids));
    desk.done(&hand, flying, ack(LONG)).await;
    assert_eq!(desk.lease(ALL).await.ids(), [behind[0]]);
    desk.done(&hand, lapsed, ack(LONG)).await;
    assert_eq!(desk.lease(ALL).await.ids(), [behind[3]]);
}

async fn items_without_a_key_never_wait_for_others(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.accepted(&[(); 4].map(|()| desk.item("t"))).await;
    let hand = desk.lease(3).await;
    let [a, b, c] = hand.ids()[..] else { panic!("three were asked for and due") };
    desk.done(&hand, a, retry(LONG)).await;
    desk.done(&hand, b, bury(true)).await;
    let rest = desk.lease(ALL).await;
    assert_eq!(sorted(&[vec![a, b, c], rest.ids()].concat()), sorted(&ids));
}

async fn equal_keys_of_two_tenants_are_separate(s: Scene) {
    let desk = Desk::new(s);
    let guest = desk.s.tenant.scoped("guest").unwrap();
    let theirs = |topic| QueueItem::new(&guest, topic, "{}").key("k");
    let mine = desk.item("t").key("k");
    let items = [mine.clone(), theirs("1"), theirs("2")];
    let ids = desk.accepted(&items).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, ids[0], bury(true)).await;
    desk.done(&hand, ids[1], retry(Duration::ZERO)).await;
    desk.done(&hand, ids[2], retry(Duration::ZERO)).await;
    desk.accepted(&[desk.item("t").key("k")]).await;
    assert_eq!(desk.lease(ALL).await.ids(), ids[1..]);
}

/// One holder has two items of a key and gives the first back: what follows waits for both.
async fn items_leased_together_hold_back_later_ones(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    let hand = desk.lease(2).await;
    assert_eq!(hand.ids(), [first, second]);
    desk.done(&hand, first, retry(Duration::ZERO)).await;
    let other = desk.lease(ALL).await;
    assert_eq!(other.ids(), [first]);
    desk.finish(&other).await;
    assert!(desk.lease(ALL).await.items.is_empty());
    desk.done(&hand, second, ack(LONG)).await;
    assert_eq!(desk.lease(ALL).await.ids(), [third]);
}

/// A store that looks at the oldest few alone never finds it.
async fn many_held_back_items_do_not_hide_due_ones(s: Scene) {
    let desk = Desk::new(s);
    let [dead] = desk.keyed(["k"]).await;
    desk.done(&desk.lease(1).await, dead, bury(true)).await;
    let behind: Vec<_> = (0..300).map(|_| desk.item("t").key("k")).collect();
    desk.accepted(&behind).await;
    let delayed: Vec<_> = (0..300).map(|_| desk.item("t").delay(LONG)).collect();
    desk.accepted(&delayed).await;
    let [free] = desk.keyed(["free"]).await;
    assert_eq!(desk.lease(1).await.ids(), [free]);
}

/// A holder gives back what follows a failed item at once, and the failed one for later.
async fn item_due_before_an_earlier_one_does_not_hold_it_back(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.keyed(["k", "k", "k", "k", "k"]).await;
    let hand = desk.lease(ALL).await;
    let mut outcomes = ids.map(|id| (id, uncounted_retry(Duration::from_millis(1))));
    outcomes[0].1 = retry(SHORT);
    let _ = desk.resolve(&hand.token, &outcomes).await;
    desk.s.outlive(SHORT).await;
    assert_eq!(desk.lease(2).await.ids(), ids[..2]);
}

async fn items_behind_a_dead_one_do_not_hide_other_retries(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.keyed(["k", "k", "k", "k", "other"]).await;
    let hand = desk.lease(ALL).await;
    let mut outcomes = ids.map(|id| (id, uncounted_retry(Duration::ZERO)));
    outcomes[0].1 = bury(true);
    outcomes[4].1 = retry(SHORT);
    let _ = desk.resolve(&hand.token, &outcomes).await;
    desk.s.outlive(SHORT).await;
    assert_eq!(desk.lease(2).await.ids(), ids[4..]);
}
