//! What an operator sees of items that wait or are in flight.

use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{ItemId, QueueItem, QueuedItem};

use super::{ALL, TestQueue, ack, bury, retry, retry_without_key, uncounted_retry};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![
    TestQueue::new;
    waiting_lists_the_oldest_items_in_order,
    waiting_leaves_out_dead_and_done_items,
    waiting_shows_attempts_and_the_newest_reason,
    waiting_shows_which_items_are_in_flight,
    waiting_is_listed_by_tenant,
];

async fn waiting(queue: &TestQueue, whose: Option<&Tenant>, at_most: u32) -> Vec<QueuedItem> {
    let found = queue.context.store.waiting(&queue.name, whose, at_most).await;
    found.expect("the store answers")
}

fn ids(items: &[QueuedItem]) -> Vec<ItemId> {
    items.iter().map(|item| item.id).collect()
}

async fn waiting_lists_the_oldest_items_in_order(queue: TestQueue) {
    assert_eq!(waiting(&queue, None, 10).await, []);
    let first = queue.accepted(&[queue.item("a").key("k"), queue.item("b").delay(LONG)]).await;
    queue.context.outlive(SHORT).await;
    let items = [(); 3].map(|()| queue.item("c").key("k"));
    let mut all = first.clone();
    all.extend(queue.accepted(&items).await);
    let [other] = queue.keyed(["other"]).await;
    all.push(other);
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), first[..1]);
    queue.done(&batch, first[0], retry(LONG)).await;
    assert_eq!(queue.lease(ALL).await.ids(), [other], "in flight");
    let found = waiting(&queue.reopened().await, None, 100).await;
    assert_eq!(ids(&found), all, "each way to wait");
    assert_eq!((&*found[0].topic, found[0].key.as_deref()), ("a", Some("k")));
    assert_eq!((&*found[1].topic, found[1].key.as_deref()), ("b", None));
    assert!(found[0].age >= SHORT && found[0].age < LONG, "{:?}", found[0].age);
    assert_eq!(ids(&waiting(&queue, None, 2).await), all[..2]);
    assert_eq!(waiting(&queue, None, 0).await, []);
}

async fn waiting_leaves_out_dead_and_done_items(queue: TestQueue) {
    let [blocked, kept] = queue.keyed(["k", "k"]).await;
    let [dead, done] = queue.keyed(["a", "b"]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, blocked, bury(true)).await;
    queue.done(&batch, dead, bury(false)).await;
    queue.done(&batch, done, ack(LONG)).await;
    queue.done(&batch, kept, retry(Duration::ZERO)).await;
    assert_eq!(ids(&waiting(&queue, None, 10).await), [kept]);
}

async fn waiting_shows_attempts_and_the_newest_reason(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    let shown = async || {
        let found = waiting(&queue, None, 10).await;
        assert_eq!(ids(&found), [item]);
        let reason = found[0].reason.as_deref().map(str::to_owned);
        (found[0].attempts, reason, found[0].key.is_some())
    };
    let told = |text: &str| Some(text.to_owned());
    assert_eq!(shown().await, (0, None, true));
    let batch = queue.lease(1).await;
    assert_eq!(shown().await, (1, None, true), "the attempt in flight");
    queue.done(&batch, item, retry(Duration::ZERO)).await;
    assert_eq!(shown().await, (1, told("not now"), true));
    let batch = queue.lease(1).await;
    assert_eq!(shown().await, (2, told("not now"), true));
    queue.done(&batch, item, uncounted_retry(Duration::ZERO)).await;
    assert_eq!(shown().await, (1, told("not my turn"), true));
    let batch = queue.lease(1).await;
    queue.done(&batch, item, retry_without_key(LONG)).await;
    assert_eq!(shown().await, (2, told("pass by"), false));
}

async fn waiting_shows_which_items_are_in_flight(queue: TestQueue) {
    let [first, second] = queue.keyed(["a", "b"]).await;
    let flying = async || -> Vec<(ItemId, bool, u32)> {
        let found = waiting(&queue, None, 10).await;
        found.iter().map(|item| (item.id, item.in_flight, item.attempts)).collect()
    };
    assert_eq!(flying().await, [(first, false, 0), (second, false, 0)]);
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [first]);
    assert_eq!(flying().await, [(first, true, 1), (second, false, 0)]);
    queue.context.store.renew(&queue.name, &batch.token, SHORT).await.unwrap();
    queue.context.outlive(SHORT).await;
    assert_eq!(flying().await, [(first, false, 1), (second, false, 0)], "a lapsed one waits");
    assert_eq!(queue.lease(ALL).await.ids().len(), 2);
    assert_eq!(flying().await, [(first, true, 2), (second, true, 1)]);
}

async fn waiting_is_listed_by_tenant(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let theirs = || QueueItem::new(&guest, "t", "{}").key("k");
    let items = [queue.item("t"), theirs(), queue.item("t").delay(LONG), theirs(), theirs()];
    let all = queue.accepted(&items).await;
    assert_eq!(ids(&waiting(&queue, None, 10).await), all);
    assert_eq!(ids(&waiting(&queue, Some(&guest), 10).await), [all[1], all[3], all[4]]);
    assert_eq!(ids(&waiting(&queue, Some(&guest), 2).await), [all[1], all[3]]);
    assert_eq!(ids(&waiting(&queue, Some(&queue.context.tenant), 10).await), [all[0], all[2]]);
    assert_eq!(waiting(&queue, Some(&Tenant::default()), 10).await, []);
}
