//! Enqueued items are leased unchanged, and duplicates are recognised.

use std::collections::HashSet;
use std::slice::from_ref;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::Tenant;
use hapax_core::queue::{DeadQuery, Enqueued, ItemId, QueueItem, QueueName};

use super::{ALL, TestQueue, ack, bury, sorted};
use crate::context::{LONG, SHORT, concurrently, expect_woken};
use crate::suite::laws;

laws![
    TestQueue::new;
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

async fn item_is_leased_as_it_was_enqueued(queue: TestQueue) {
    let every_byte = Bytes::from((0..=255).collect::<Vec<u8>>());
    let items = [
        queue.item("plain"),
        QueueItem::new(&queue.context.tenant, "a/b c:{d}'\"\\*", every_byte)
            .key("k\u{e9}y '\"\\{}:% ,")
            .content_type("application/json; charset=\"utf-8\"")
            .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .header("empty", "")
            .header("X-\u{e9}", "\u{1f600} \"quoted\" \\ \n, {}[]"),
        QueueItem::new(&queue.context.tenant.scoped("ab").unwrap(), "t", Bytes::new()).key("k"),
        queue.item("named").id(ItemId::named(&["bot", queue.name.as_str()])),
    ];
    queue.accepted(&items).await;
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.items.len(), items.len());
    for leased in &batch.items {
        let item = items.iter().find(|item| item.id == leased.item.id).unwrap();
        // Without `assert_eq!`, because an item's debug output shows only its id.
        assert!(leased.item == *item, "{:?} came back changed", item.topic);
        assert_eq!(leased.attempt, 1);
        assert!(leased.age < LONG);
    }
}

async fn item_of_one_mebibyte_is_kept(queue: TestQueue) {
    let payload = Bytes::from((0..1 << 20).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    queue.accepted(&[QueueItem::new(&queue.context.tenant, "t", payload.clone())]).await;
    assert!(queue.lease(1).await.items[0].item.payload == payload);
}

async fn empty_queue_leases_nothing(queue: TestQueue) {
    assert_eq!(queue.enqueue(&[]).await, []);
    assert!(queue.lease(ALL).await.items.is_empty());
    let depth = queue.context.store.depth(&queue.name, None).await.unwrap();
    assert_eq!(depth, hapax_core::queue::QueueDepth::default());
    assert_eq!(queue.context.store.dead(&queue.name, None, &DeadQuery::new(10)).await.unwrap(), []);
}

async fn is_known(queue: &TestQueue, item: &QueueItem) {
    let before = queue.counts().await;
    let other = QueueItem { payload: "else".into(), ..item.clone() };
    let answers = queue.enqueue(&[item.clone(), other]).await;
    assert_eq!(answers, [Enqueued::Duplicate, Enqueued::Duplicate]);
    assert_eq!(queue.counts().await, before);
}

async fn id_of_a_waiting_item_is_a_duplicate(queue: TestQueue) {
    let (due, later) = (queue.item("t").key("k"), queue.item("t").delay(LONG));
    queue.accepted(&[due.clone(), later.clone()]).await;
    is_known(&queue, &due).await;
    is_known(&queue, &later).await;
    is_known(&queue.reopened().await, &due).await;
}

async fn id_of_an_item_in_flight_is_a_duplicate(queue: TestQueue) {
    let item = queue.item("t");
    queue.accepted(from_ref(&item)).await;
    queue.lapsed(1).await;
    is_known(&queue, &item).await;
    let batch = queue.lease(1).await;
    is_known(&queue, &item).await;
    assert!(batch.items[0].item == item);
}

async fn id_of_a_dead_item_is_a_duplicate(queue: TestQueue) {
    for blocks in [true, false] {
        let item = queue.item("t");
        queue.accepted(from_ref(&item)).await;
        queue.done(&queue.lease(1).await, item.id, bury(blocks)).await;
        is_known(&queue, &item).await;
        assert!(queue.lease(1).await.items.is_empty());
    }
}

async fn id_of_a_done_item_is_a_duplicate_within_its_retention(queue: TestQueue) {
    let item = queue.item("t").key("k");
    queue.accepted(from_ref(&item)).await;
    queue.done(&queue.lease(1).await, item.id, ack(LONG)).await;
    is_known(&queue, &item).await;
    assert!(queue.lease(1).await.items.is_empty());
}

async fn id_of_a_done_item_is_accepted_after_its_retention(queue: TestQueue) {
    for retention in [SHORT, Duration::ZERO] {
        let item = queue.item("t").key("k");
        queue.accepted(from_ref(&item)).await;
        queue.done(&queue.lease(1).await, item.id, ack(retention)).await;
        if retention > Duration::ZERO {
            queue.context.outlive(retention).await;
        }
        queue.accepted(from_ref(&item)).await;
        let batch = queue.lease(1).await;
        assert_eq!((batch.ids(), batch.attempts()), (vec![item.id], vec![1]));
        queue.finish(&batch).await;
    }
}

async fn id_twice_in_one_call_is_accepted_once(queue: TestQueue) {
    let (one, two) = (queue.item("t"), queue.item("t").key("k"));
    let call = [one.clone(), two.clone(), one.clone(), two.clone()];
    let (yes, no) = (Enqueued::Accepted, Enqueued::Duplicate);
    assert_eq!(queue.enqueue(&call).await, [yes, yes, no, no]);
    assert_eq!(queue.lease(ALL).await.sorted(), sorted(&[one.id, two.id]));
}

async fn duplicate_changes_nothing(queue: TestQueue) {
    let first = queue.item("t").key("k");
    let second = queue.item("t").key("k");
    queue.accepted(&[first.clone(), second.clone()]).await;
    let changed =
        QueueItem { payload: "else".into(), key: None, topic: "u".into(), ..first.clone() };
    queue.enqueue(&[changed.delay(LONG)]).await;
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.ids(), [first.id, second.id], "it kept its place");
    assert!(batch.items[0].item == first);
}

async fn concurrent_enqueues_accept_an_id_once(queue: TestQueue) {
    let nodes = [queue.clone(), queue.reopened().await];
    let items: Vec<_> = (0..10).map(|_| queue.item("t").key("k")).collect();
    let calls = (0..16).map(|i| {
        let (queue, mut items) = (nodes[i % 2].clone(), items.clone());
        items.rotate_left(i % 10);
        async move { queue.enqueue(&items).await }
    });
    let answers = concurrently(calls).await.into_iter().flatten();
    assert_eq!(answers.filter(|answer| *answer == Enqueued::Accepted).count(), 10);
    assert_eq!(queue.lease(ALL).await.ids().into_iter().collect::<HashSet<_>>().len(), 10);
}

async fn queues_with_equal_ids_are_separate(one: TestQueue) {
    let name = QueueName::new(&format!("{}x", one.name.as_str())).unwrap();
    let two = TestQueue { name, ..one.clone() };
    let item = one.item("t").key("k");
    one.accepted(from_ref(&item)).await;
    two.accepted(from_ref(&item)).await;
    let batch = one.lease(ALL).await;
    assert_eq!(batch.ids(), [item.id]);
    let stranger = two.resolve_one(&batch.token, item.id, ack(LONG)).await;
    assert_eq!(stranger, hapax_core::queue::Resolved::Lost);
    assert_eq!(two.context.store.renew(&two.name, &batch.token, LONG).await.unwrap(), 0);
    one.finish(&batch).await;
    assert_eq!(two.counts().await, (1, 0, 0));
    assert_eq!(two.lease(ALL).await.ids(), [item.id]);
}

async fn item_is_not_due_before_its_delay_has_passed(queue: TestQueue) {
    let (far, near) = (queue.item("t").delay(LONG), queue.item("t").delay(SHORT));
    queue.accepted(&[far, near.clone()]).await;
    queue.context.outlive(SHORT).await;
    let batch = queue.lease(ALL).await;
    assert_eq!((batch.ids(), batch.attempts()), (vec![near.id], vec![1]));
    assert_eq!(batch.items[0].item.delay, Duration::ZERO);
    assert!(batch.items[0].age >= SHORT);
    assert_eq!(queue.counts().await, (1, 1, 0));
}

async fn items_survive_a_restart(queue: TestQueue) {
    let [first, second] = queue.keyed(["k", "k"]).await;
    let batch = queue.lease(1).await;
    let other = queue.reopened().await;
    assert_eq!(other.counts().await, (1, 1, 0));
    other.finish(&batch).await;
    let batch = other.lease(ALL).await;
    assert_eq!(batch.ids(), [second]);
    assert_eq!(queue.counts().await, (0, 1, 0));
    assert_ne!(first, second);
}

async fn sweep_removes_only_done_items_after_their_retention(queue: TestQueue) {
    let items = [(); 4].map(|()| queue.item("t"));
    queue.accepted(&items).await;
    let batch = queue.lease(3).await;
    let waits = items.iter().map(|item| item.id).find(|id| !batch.ids().contains(id)).unwrap();
    let [gone, kept, dead] = batch.ids()[..] else { panic!() };
    queue.done(&batch, gone, ack(SHORT)).await;
    queue.done(&batch, kept, ack(LONG)).await;
    queue.done(&batch, dead, bury(true)).await;
    queue.context.outlive(SHORT).await;
    queue.context.sweep(1).await;
    assert_eq!(queue.counts().await, (1, 0, 1));
    for item in &items {
        let accepted = queue.enqueue(from_ref(item)).await == [Enqueued::Accepted];
        assert_eq!(accepted, item.id == gone);
    }
    assert_eq!(queue.lease(ALL).await.sorted(), sorted(&[waits, gone]));
}

async fn expect_waiter_woken(waiting: &TestQueue, writing: &TestQueue) {
    let item = QueueItem::new(&Tenant::default(), "t", "{}");
    let enqueue = async { drop(writing.accepted(&[item]).await) };
    expect_woken(waiting.context.store.arrivals(&waiting.name), enqueue).await;
    assert_eq!(waiting.lease(1).await.items.len(), 1);
}

async fn waiter_is_woken_by_an_arrival(queue: TestQueue) {
    expect_waiter_woken(&queue, &queue).await;
}

async fn waiter_on_another_node_is_woken_by_an_arrival(queue: TestQueue) {
    expect_waiter_woken(&queue.reopened().await, &queue).await;
}
