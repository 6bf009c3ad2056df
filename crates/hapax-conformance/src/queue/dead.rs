//! Dead items, depth, and what an operator can do.

use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{DeadLetter, DeadQuery, ItemId, QueueDepth, QueueItem};

use super::{ALL, TestQueue, ack, bury, retry, sorted};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![
    TestQueue::new;
    dead_item_has_key_attempts_and_reason,
    dead_items_are_listed_in_pages_ordered_by_id,
    dead_items_are_listed_by_tenant,
    dead_item_is_read_with_its_payload,
    queues_lists_every_queue_with_items,
    requeued_item_has_its_old_place_and_no_attempts,
    requeued_item_of_an_unblocked_key_is_leased,
    discarded_item_is_gone_and_unblocks_its_key,
    only_dead_items_are_requeued_or_discarded,
    dead_item_of_another_tenant_is_not_changed,
    depth_counts_waiting_in_flight_and_dead_items,
    depth_has_the_age_of_the_oldest_item,
    depth_is_counted_by_tenant,
];

async fn dead(
    queue: &TestQueue,
    whose: Option<&Tenant>,
    after: Option<ItemId>,
    n: u32,
) -> Vec<DeadLetter> {
    let query = DeadQuery::new(n).after(after);
    queue.context.store.dead(&queue.name, whose, &query).await.expect("the store answers")
}

async fn dead_item_is_read_with_its_payload(queue: TestQueue) {
    let item = queue.item("a").content_type("text/plain").header("n", "v");
    queue.enqueue(std::slice::from_ref(&item)).await;
    let (store, name, other) = (&queue.context.store, &queue.name, queue.context.other_tenant());
    let read = async |whose, id| store.dead_item(name, whose, id).await.expect("the store answers");
    assert_eq!(read(None, item.id).await, None, "it is not dead yet");
    bury_all(&queue).await;
    assert_eq!(read(None, item.id).await.as_ref(), Some(&item));
    assert_eq!(read(Some(&item.tenant), item.id).await.as_ref(), Some(&item));
    assert_eq!(read(Some(&other), item.id).await, None);
    assert_eq!(read(None, ItemId::fresh()).await, None);
    assert_eq!(dead(&queue, None, None, 1).await[0].topic, item.topic);
}

async fn queues_lists_every_queue_with_items(queue: TestQueue) {
    let is_listed = async || {
        let names = queue.context.store.queues().await.expect("the store answers");
        assert!(names.is_sorted_by(|a, b| a.as_str() < b.as_str()));
        names.contains(&queue.name)
    };
    assert!(!is_listed().await, "an unused queue");
    queue.enqueue(&[queue.item("a")]).await;
    assert!(is_listed().await, "an item waits");
    bury_all(&queue).await;
    assert!(is_listed().await, "an item is dead");
}

async fn requeue(queue: &TestQueue, whose: Option<&Tenant>, id: ItemId) -> bool {
    queue.context.store.requeue(&queue.name, whose, id).await.expect("the store answers")
}

async fn discard(queue: &TestQueue, whose: Option<&Tenant>, id: ItemId) -> bool {
    queue.context.store.discard(&queue.name, whose, id).await.expect("the store answers")
}

async fn depth(queue: &TestQueue, whose: Option<&Tenant>) -> QueueDepth {
    queue.context.store.depth(&queue.name, whose).await.expect("the store answers")
}

/// Buries everything that is due.
async fn bury_all(queue: &TestQueue) {
    loop {
        let batch = queue.lease(ALL).await;
        if batch.items.is_empty() {
            return;
        }
        for id in batch.ids() {
            queue.done(&batch, id, bury(true)).await;
        }
    }
}

async fn dead_item_has_key_attempts_and_reason(queue: TestQueue) {
    let (keyed, plain) = (queue.item("t").key("k\u{e9}y"), queue.item("t"));
    queue.accepted(&[keyed.clone(), plain.clone()]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, keyed.id, retry(Duration::ZERO)).await;
    queue.done(&batch, plain.id, bury(false)).await;
    queue.done(&queue.lease(1).await, keyed.id, bury(true)).await;
    let dead_items = dead(&queue.reopened().await, None, None, 10).await;
    assert_eq!(dead_items.len(), 2);
    let of = |id| dead_items.iter().find(|dead_item| dead_item.id == id).unwrap();
    let (first, second) = (of(keyed.id), of(plain.id));
    assert_eq!((first.key.as_deref(), first.attempts), (Some("k\u{e9}y"), 2));
    assert_eq!((second.key.as_deref(), second.attempts), (None, 1));
    assert_eq!((&*first.reason, &*second.reason), ("never", "never"));
    assert!(first.at >= second.at, "buried later");
}

async fn dead_items_are_listed_in_pages_ordered_by_id(queue: TestQueue) {
    // Half of the ids are digests, so that their order is not that of time.
    let named = |i: usize| ItemId::named(&[queue.name.as_str(), &i.to_string()]);
    let items = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| match i % 2 {
        0 => queue.item("t").id(named(i)),
        _ => queue.item("t"),
    });
    let ids = queue.accepted(&items).await;
    bury_all(&queue).await;
    let all: Vec<_> =
        dead(&queue, None, None, 100).await.iter().map(|dead_item| dead_item.id).collect();
    assert_eq!(all, sorted(&ids));
    let mut paged: Vec<ItemId> = Vec::new();
    for _ in 0..items.len() {
        let page = dead(&queue, None, paged.last().copied(), 4).await;
        paged.extend(page.iter().map(|dead_item| dead_item.id));
        if page.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all);
}

async fn dead_items_are_listed_by_tenant(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let items = [queue.item("t"), QueueItem::new(&guest, "t", "{}"), queue.item("t")];
    let ids = queue.accepted(&items).await;
    bury_all(&queue).await;
    let listed = async |whose: Option<&Tenant>| -> Vec<ItemId> {
        dead(&queue, whose, None, 10).await.iter().map(|dead_item| dead_item.id).collect()
    };
    assert_eq!(listed(None).await, sorted(&ids));
    assert_eq!(listed(Some(&queue.context.tenant)).await, sorted(&[ids[0], ids[2]]));
    assert_eq!(listed(Some(&guest)).await, [ids[1]]);
    assert!(listed(Some(&Tenant::default())).await.is_empty());
}

async fn requeued_item_has_its_old_place_and_no_attempts(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    let batch = queue.lease(1).await;
    queue.done(&batch, first, retry(Duration::ZERO)).await;
    let batch = queue.lease(1).await;
    queue.done(&batch, first, bury(true)).await;
    assert!(requeue(&queue, None, first).await);
    assert_eq!(queue.counts().await, (3, 0, 0));
    let again = queue.reopened().await.lease(ALL).await;
    assert_eq!((again.ids(), again.attempts()), (vec![first, second, third], vec![1, 1, 1]));
    assert!(again.items[0].fence > batch.items[0].fence);
}

async fn requeued_item_of_an_unblocked_key_is_leased(queue: TestQueue) {
    let [first, second, third] = queue.keyed(["k", "k", "k"]).await;
    queue.done(&queue.lease(1).await, first, bury(false)).await;
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [second]);
    assert!(requeue(&queue, Some(&queue.context.tenant), first).await);
    queue.finish(&batch).await;
    assert_eq!(queue.lease(ALL).await.ids(), [first, third]);
}

async fn discarded_item_is_gone_and_unblocks_its_key(queue: TestQueue) {
    let items = [(); 2].map(|()| queue.item("t").key("k"));
    let ids = queue.accepted(&items).await;
    queue.done(&queue.lease(1).await, ids[0], bury(true)).await;
    assert!(discard(&queue, Some(&queue.context.tenant), ids[0]).await);
    assert_eq!(queue.counts().await, (1, 0, 0));
    assert!(!discard(&queue, None, ids[0]).await);
    assert!(!requeue(&queue, None, ids[0]).await);
    queue.accepted(&items[..1]).await;
    assert_eq!(queue.lease(ALL).await.ids(), [ids[1], ids[0]], "as a new one, behind the other");
}

async fn only_dead_items_are_requeued_or_discarded(queue: TestQueue) {
    let ids =
        queue.accepted(&[queue.item("t").delay(LONG), queue.item("t"), queue.item("t")]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, ids[1], ack(LONG)).await;
    for id in [ids[0], ids[1], ids[2], ItemId::fresh()] {
        assert!(!requeue(&queue, None, id).await);
        assert!(!discard(&queue, None, id).await);
    }
    assert_eq!(queue.counts().await, (1, 1, 0));
    queue.done(&batch, ids[2], ack(LONG)).await;
}

async fn dead_item_of_another_tenant_is_not_changed(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let ids = queue.accepted(&[queue.item("t")]).await;
    bury_all(&queue).await;
    assert!(!requeue(&queue, Some(&guest), ids[0]).await);
    assert!(!discard(&queue, Some(&guest), ids[0]).await);
    assert_eq!(queue.counts().await, (0, 0, 1));
    assert!(requeue(&queue, Some(&queue.context.tenant), ids[0]).await);
    bury_all(&queue).await;
    assert!(discard(&queue, Some(&queue.context.tenant), ids[0]).await);
}

async fn depth_counts_waiting_in_flight_and_dead_items(queue: TestQueue) {
    queue.keyed(["a", "b", "c", "d"]).await;
    assert_eq!(queue.counts().await, (4, 0, 0));
    let batch = queue.lease(ALL).await;
    assert_eq!(queue.counts().await, (0, 4, 0));
    let held = batch.ids();
    queue.done(&batch, held[0], bury(true)).await;
    queue.done(&batch, held[1], ack(LONG)).await;
    queue.done(&batch, held[2], retry(LONG)).await;
    queue.accepted(&[queue.item("t").delay(LONG)]).await;
    queue.keyed(["a", "b", "c", "d"]).await;
    assert_eq!(queue.counts().await, (6, 1, 1));
    assert_eq!(queue.reopened().await.counts().await, (6, 1, 1));
    assert_eq!(queue.context.store.renew(&queue.name, &batch.token, SHORT).await.unwrap(), 1);
    queue.context.outlive(SHORT).await;
    assert_eq!(queue.counts().await, (7, 0, 1), "a lapsed one waits");
}

async fn depth_has_the_age_of_the_oldest_item(queue: TestQueue) {
    assert_eq!(depth(&queue, None).await.oldest_age, None);
    let [old] = queue.keyed(["old"]).await;
    queue.context.outlive(SHORT).await;
    let [dead] = queue.keyed(["dead"]).await;
    let age = depth(&queue, None).await.oldest_age.unwrap();
    assert!(age >= SHORT && age < LONG, "{age:?}");
    let batch = queue.lease(ALL).await;
    queue.done(&batch, dead, bury(true)).await;
    assert!(depth(&queue, None).await.oldest_age.unwrap() >= SHORT, "in flight is not done");
    queue.done(&batch, old, ack(LONG)).await;
    assert_eq!(depth(&queue, None).await.oldest_age, None, "neither done nor dead ones count");
}

async fn depth_is_counted_by_tenant(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let theirs = || QueueItem::new(&guest, "t", "{}").key("k");
    let first = theirs();
    queue.accepted(&[queue.item("t").key("k"), first.clone(), theirs(), theirs()]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, first.id, bury(true)).await;
    queue.accepted(&[theirs(), theirs(), queue.item("t").delay(LONG)]).await;
    let counts = |depth: QueueDepth| (depth.waiting, depth.in_flight, depth.dead);
    assert_eq!(counts(depth(&queue, None).await), (3, 3, 1));
    assert_eq!(counts(depth(&queue, Some(&guest)).await), (2, 2, 1));
    assert_eq!(counts(depth(&queue, Some(&queue.context.tenant)).await), (1, 1, 0));
    assert_eq!(depth(&queue, Some(&Tenant::default())).await, QueueDepth::default());
}
