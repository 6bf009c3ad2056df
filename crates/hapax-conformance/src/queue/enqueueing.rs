//! What goes in comes out, once.

use std::collections::HashSet;
use std::slice::from_ref;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Tenant;
use hapax_core::queue::{Enqueued, ItemId, QueueItem, QueueName};

use super::{ALL, Desk, ack, bury, sorted};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
    item_is_leased_as_it_was_enqueued,
    item_of_one_mebibyte_is_kept,
    empty_queue_leases_nothing,
    id_of_a_waiting_item_is_a_duplicate,
    id_of_an_item_in_flight_is_a_duplicate,
    id_of_a_dead_item_is_a_duplicate,
    id_of_a_done_item_is_a_duplicate_within_its_retention,
    id_of_a_done_item_is_accepted_after_its_retention,
    id_twice_in_one_call_is_accepted_once,
    duplicate_changes_nothing,
    concurrent_enqueues_accept_an_id_once,
    queues_with_equal_ids_are_separate,
    item_is_not_due_before_its_delay_has_passed,
    items_survive_a_restart,
    sweep_removes_only_done_items_after_their_retention,
    waiter_is_woken_by_an_arrival,
    waiter_on_another_node_is_woken_by_an_arrival,
];

async fn item_is_leased_as_it_was_enqueued(s: Scene) {
    let desk = Desk::new(s);
    let every_byte = Bytes::from((0..=255).collect::<Vec<u8>>());
    let items = [
        desk.item("plain"),
        QueueItem::new(&desk.s.tenant, "a/b c:{d}'\"\\*", every_byte)
            .key("k\u{e9}y '\"\\{}:% ,")
            .content_type("application/json; charset=\"utf-8\"")
            .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .header("empty", "")
            .header("X-\u{e9}", "\u{1f600} \"quoted\" \\ \n, {}[]"),
        QueueItem::new(&desk.s.tenant.scoped("ab").unwrap(), "t", Bytes::new()).key("k"),
        desk.item("named").id(ItemId::named(&["bot", desk.queue.as_str()])),
    ];
    desk.accepted(&items).await;
    let hand = desk.lease(ALL).await;
    assert_eq!(hand.items.len(), items.len());
    for leased in &hand.items {
        let item = items.iter().find(|item| item.id == leased.item.id).unwrap();
        // Not by `assert_eq!`: an item's debug output shows its id alone.
        assert!(leased.item == *item, "{:?} came back changed", item.topic);
        assert_eq!(leased.attempt, 1);
        assert!(leased.age < LONG);
    }
}

async fn item_of_one_mebibyte_is_kept(s: Scene) {
    let desk = Desk::new(s);
    let payload = Bytes::from((0..1 << 20).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    desk.accepted(&[QueueItem::new(&desk.s.tenant, "t", payload.clone())]).await;
    assert!(desk.lease(1).await.items[0].item.payload == payload);
}

async fn empty_queue_leases_nothing(s: Scene) {
    let desk = Desk::new(s);
    assert_eq!(desk.enqueue(&[]).await, []);
    assert!(desk.lease(ALL).await.items.is_empty());
    let depth = desk.s.store.depth(&desk.queue, None).await.unwrap();
    assert_eq!(depth, hapax_core::queue::QueueDepth::default());
    assert_eq!(desk.s.store.dead(&desk.queue, None, None, 10).await.unwrap(), []);
}

async fn is_known(desk: &Desk, item: &QueueItem) {
    let before = desk.counts().await;
    let other = QueueItem { payload: "else".into(), ..item.clone() };
    let answers = desk.enqueue(&[item.clone(), other]).await;
    assert_eq!(answers, [Enqueued::Duplicate, Enqueued::Duplicate]);
    assert_eq!(desk.counts().await, before);
}

async fn id_of_a_waiting_item_is_a_duplicate(s: Scene) {
    let desk = Desk::new(s);
    let (due, later) = (desk.item("t").key("k"), desk.item("t").delay(LONG));
    desk.accepted(&[due.clone(), later.clone()]).await;
    is_known(&desk, &due).await;
    is_known(&desk, &later).await;
    is_known(&desk.reopened().await, &due).await;
}

async fn id_of_an_item_in_flight_is_a_duplicate(s: Scene) {
    let desk = Desk::new(s);
    let item = desk.item("t");
    desk.accepted(from_ref(&item)).await;
    desk.lapsed(1).await;
    is_known(&desk, &item).await;
    let hand = desk.lease(1).await;
    is_known(&desk, &item).await;
    assert!(hand.items[0].item == item);
}

async fn id_of_a_dead_item_is_a_duplicate(s: Scene) {
    let desk = Desk::new(s);
    for blocks in [true, false] {
        let item = desk.item("t");
        desk.accepted(from_ref(&item)).await;
        desk.done(&desk.lease(1).await, item.id, bury(blocks)).await;
        is_known(&desk, &item).await;
        assert!(desk.lease(1).await.items.is_empty());
    }
}

async fn id_of_a_done_item_is_a_duplicate_within_its_retention(s: Scene) {
    let desk = Desk::new(s);
    let item = desk.item("t").key("k");
    desk.accepted(from_ref(&item)).await;
    desk.done(&desk.lease(1).await, item.id, ack(LONG)).await;
    is_known(&desk, &item).await;
    assert!(desk.lease(1).await.items.is_empty());
}

async fn id_of_a_done_item_is_accepted_after_its_retention(s: Scene) {
    let desk = Desk::new(s);
    for remember in [SHORT, Duration::ZERO] {
        let item = desk.item("t").key("k");
        desk.accepted(from_ref(&item)).await;
        desk.done(&desk.lease(1).await, item.id, ack(remember)).await;
        if remember > Duration::ZERO {
            desk.s.outlive(remember).await;
        }
        desk.accepted(from_ref(&item)).await;
        let hand = desk.lease(1).await;
        assert_eq!((hand.ids(), hand.attempts()), (vec![item.id], vec![1]));
        desk.finish(&hand).await;
    }
}

async fn id_twice_in_one_call_is_accepted_once(s: Scene) {
    let desk = Desk::new(s);
    let (one, two) = (desk.item("t"), desk.item("t").key("k"));
    let call = [one.clone(), two.clone(), one.clone(), two.clone()];
    let (yes, no) = (Enqueued::Accepted, Enqueued::Duplicate);
    assert_eq!(desk.enqueue(&call).await, [yes, yes, no, no]);
    assert_eq!(desk.lease(ALL).await.sorted(), sorted(&[one.id, two.id]));
}

async fn duplicate_changes_nothing(s: Scene) {
    let desk = Desk::new(s);
    let first = desk.item("t").key("k");
    let second = desk.item("t").key("k");
    desk.accepted(&[first.clone(), second.clone()]).await;
    let changed =
        QueueItem { payload: "else".into(), key: None, topic: "u".into(), ..first.clone() };
    desk.enqueue(&[changed.delay(LONG)]).await;
    let hand = desk.lease(ALL).await;
    assert_eq!(hand.ids(), [first.id, second.id], "it kept its place");
    assert!(hand.items[0].item == first);
}

async fn concurrent_enqueues_accept_an_id_once(s: Scene) {
    let desk = Desk::new(s);
    let nodes = [desk.clone(), desk.reopened().await];
    let items: Vec<_> = (0..10).map(|_| desk.item("t").key("k")).collect();
    let calls = (0..16).map(|i| {
        let (desk, mut items) = (nodes[i % 2].clone(), items.clone());
        items.rotate_left(i % 10);
        tokio::spawn(async move { desk.enqueue(&items).await })
    });
    let mut accepted = 0;
    for call in calls.collect::<Vec<_>>() {
        let answers = call.await.unwrap();
        accepted += answers.iter().filter(|answer| **answer == Enqueued::Accepted).count();
    }
    assert_eq!(accepted, 10);
    assert_eq!(desk.lease(ALL).await.ids().into_iter().collect::<HashSet<_>>().len(), 10);
}

async fn queues_with_equal_ids_are_separate(s: Scene) {
    let one = Desk::new(s);
    let name = QueueName::new(&format!("{}x", one.queue.as_str())).unwrap();
    let two = Desk { queue: name, ..one.clone() };
    let item = one.item("t").key("k");
    one.accepted(from_ref(&item)).await;
    two.accepted(from_ref(&item)).await;
    let hand = one.lease(ALL).await;
    assert_eq!(hand.ids(), [item.id]);
    let stranger = two.resolve_one(&hand.token, item.id, ack(LONG)).await;
    assert_eq!(stranger, hapax_core::queue::Resolved::Lost);
    assert_eq!(two.s.store.renew(&two.queue, &hand.token, LONG).await.unwrap(), 0);
    one.finish(&hand).await;
    assert_eq!(two.counts().await, (1, 0, 0));
    assert_eq!(two.lease(ALL).await.ids(), [item.id]);
}

async fn item_is_not_due_before_its_delay_has_passed(s: Scene) {
    let desk = Desk::new(s);
    let (far, near) = (desk.item("t").delay(LONG), desk.item("t").delay(SHORT));
    desk.accepted(&[far, near.clone()]).await;
    desk.s.outlive(SHORT).await;
    let hand = desk.lease(ALL).await;
    assert_eq!((hand.ids(), hand.attempts()), (vec![near.id], vec![1]));
    assert_eq!(hand.items[0].item.delay, Duration::ZERO);
    assert!(hand.items[0].age >= SHORT);
    assert_eq!(desk.counts().await, (1, 1, 0));
}

async fn items_survive_a_restart(s: Scene) {
    let desk = Desk::new(s);
    let [first, second] = desk.keyed(["k", "k"]).await;
    let hand = desk.lease(1).await;
    let other = desk.reopened().await;
    assert_eq!(other.counts().await, (1, 1, 0));
    other.finish(&hand).await;
    let hand = other.lease(ALL).await;
    assert_eq!(hand.ids(), [second]);
    assert_eq!(desk.counts().await, (0, 1, 0));
    assert_ne!(first, second);
}

async fn sweep_removes_only_done_items_after_their_retention(s: Scene) {
    let desk = Desk::new(s);
    let items = [(); 4].map(|()| desk.item("t"));
    desk.accepted(&items).await;
    let hand = desk.lease(3).await;
    let waits = items.iter().map(|item| item.id).find(|id| !hand.ids().contains(id)).unwrap();
    let [gone, kept, dead] = hand.ids()[..] else { panic!() };
    desk.done(&hand, gone, ack(SHORT)).await;
    desk.done(&hand, kept, ack(LONG)).await;
    desk.done(&hand, dead, bury(true)).await;
    desk.s.outlive(SHORT).await;
    desk.s.store.sweep(10_000).await.unwrap();
    assert_eq!(desk.counts().await, (1, 0, 1));
    for item in &items {
        let accepted = desk.enqueue(from_ref(item)).await == [Enqueued::Accepted];
        assert_eq!(accepted, item.id == gone);
    }
    assert_eq!(desk.lease(ALL).await.sorted(), sorted(&[waits, gone]));
}

/// Waits far longer than the test may take: only a hint ends it in time.
async fn woken(waiting: &Desk, writing: &Desk) {
    let mut watch = waiting.s.store.arrivals(&waiting.queue);
    // As with claims: a subscription over the network may need a moment to stand.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let stranger = Tenant::default();
    writing.accepted(&[QueueItem::new(&stranger, "t", "{}")]).await;
    let woken = tokio::time::timeout(Duration::from_secs(60), watch.changed(LONG)).await;
    assert!(woken.is_ok(), "nobody woke the waiter");
    assert_eq!(waiting.lease(1).await.items.len(), 1);
}

async fn waiter_is_woken_by_an_arrival(s: Scene) {
    let desk = Desk::new(s);
    woken(&desk, &desk).await;
}

async fn waiter_on_another_node_is_woken_by_an_arrival(s: Scene) {
    let desk = Desk::new(s);
    woken(&desk.reopened().await, &desk).await;
}
