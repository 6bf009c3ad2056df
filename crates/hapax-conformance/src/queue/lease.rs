//! An item has one worker at a time, for as long as its lease lasts.

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::LeaseRequest;

use super::{ALL, LeasedTestItems, TestQueue, ack, bury, retry, sorted, uncounted_retry};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![
    TestQueue::new;
    leased_item_is_not_leased_again,
    lease_takes_at_most_the_requested_number,
    lapsed_item_is_leased_again_with_a_greater_fence,
    lease_repeated_with_its_token_returns_the_same_items,
    lease_repeated_leaves_out_resolved_items,
    lease_repeated_restarts_its_duration,
    renewed_lease_ends_at_its_new_time,
    renewed_lease_outlives_its_first_end,
    late_renewal_keeps_items_not_leased_again,
    renew_returns_the_number_of_leases,
    renewal_after_another_lease_changes_nothing,
    attempts_count_leases,
    uncounted_retry_does_not_count_its_attempt,
    lapsed_lease_counts_as_an_attempt,
    fences_grow_with_every_lease_of_an_item,
    tenants_share_a_queue_and_keep_their_items,
];

async fn renew(queue: &TestQueue, token: &Token, lease: Duration) -> u64 {
    queue.context.store.renew(&queue.name, token, lease).await.expect("the store answers")
}

async fn leased_item_is_not_leased_again(queue: TestQueue) {
    let other = queue.reopened().await;
    let ids = queue.accepted(&[queue.item("t").key("k"), queue.item("t")]).await;
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.sorted(), sorted(&ids));
    for node in [&queue, &other] {
        assert!(node.lease(ALL).await.items.is_empty());
        assert_eq!(node.counts().await, (0, 2, 0));
    }
    queue.finish(&batch).await;
    assert!(other.lease(ALL).await.items.is_empty());
    assert_eq!(other.counts().await, (0, 0, 0));
}

async fn lease_takes_at_most_the_requested_number(queue: TestQueue) {
    let items: Vec<_> = (0..10)
        .map(|i| if i % 2 == 0 { queue.item("t") } else { queue.item("t").key(&i.to_string()) })
        .collect();
    let ids = queue.accepted(&items).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let batch = queue.lease(3).await;
        assert!(!batch.items.is_empty(), "{} of {} were handed out", seen.len(), ids.len());
        seen.extend(batch.ids());
    }
    assert_eq!(sorted(&seen), sorted(&ids));
    assert!(queue.lease(3).await.items.is_empty());
}

async fn lapsed_item_is_leased_again_with_a_greater_fence(queue: TestQueue) {
    let ids = queue.accepted(&[queue.item("t").key("k"), queue.item("t")]).await;
    let first = queue.lapsed(ALL).await;
    assert_eq!(queue.counts().await, (2, 0, 0), "lapsed ones wait");
    let second = queue.reopened().await.lease(ALL).await;
    assert_eq!((second.sorted(), second.attempts()), (sorted(&ids), vec![2, 2]));
    for leased in &second.items {
        let before = first.items.iter().find(|before| before.item.id == leased.item.id).unwrap();
        assert!(leased.fence > before.fence);
        assert!(leased.age >= SHORT);
    }
}

async fn lease_repeated_with_its_token_returns_the_same_items(queue: TestQueue) {
    let items: Vec<_> = (0..6).map(|_| queue.item("t").key("k")).collect();
    let ids = queue.accepted(&items).await;
    let take = LeaseRequest::new(2, LONG);
    let first = queue.take(&take).await;
    let other = queue.reopened().await;
    for (node, at_most) in [(&queue, 2), (&other, 6), (&queue, 3)] {
        let again = node.take(&LeaseRequest { max_items: at_most, ..take.clone() }).await;
        let told =
            |leased: &hapax_core::queue::LeasedItem| (leased.item.id, leased.attempt, leased.fence);
        let expected: Vec<_> = first.iter().map(told).collect();
        assert_eq!(again.iter().map(told).collect::<Vec<_>>(), expected);
    }
    assert_eq!(first.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(queue.counts().await, (4, 2, 0));
}

async fn lease_repeated_leaves_out_resolved_items(queue: TestQueue) {
    let ids = queue.accepted(&[(); 5].map(|()| queue.item("t"))).await;
    let take = LeaseRequest::new(4, LONG);
    let batch = LeasedTestItems { items: queue.take(&take).await, token: take.token.clone() };
    let held = batch.ids();
    queue.done(&batch, held[0], ack(LONG)).await;
    queue.done(&batch, held[1], retry(Duration::ZERO)).await;
    queue.done(&batch, held[2], bury(true)).await;
    let again = queue.take(&take).await;
    assert_eq!(again.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), [held[3]]);
    assert_eq!(queue.counts().await, (2, 1, 1));
    assert_eq!(ids.len(), 5);
}

async fn lease_repeated_restarts_its_duration(queue: TestQueue) {
    queue.accepted(&[queue.item("t")]).await;
    let take = LeaseRequest::new(1, LONG);
    queue.take(&take).await;
    // The second lease is the shorter one, because a short first lease may lapse early on a busy
    // machine.
    queue.take(&LeaseRequest { lease: SHORT, ..take }).await;
    queue.context.outlive(SHORT).await;
    assert_eq!(queue.lease(1).await.attempts(), [2]);
}

async fn renewed_lease_ends_at_its_new_time(queue: TestQueue) {
    queue.accepted(&[queue.item("t")]).await;
    let batch = queue.lease(1).await;
    assert_eq!(renew(&queue, &batch.token, SHORT).await, 1);
    queue.context.outlive(SHORT).await;
    assert_eq!(queue.lease(1).await.attempts(), [2]);
}

async fn renewed_lease_outlives_its_first_end(queue: TestQueue) {
    queue.accepted(&[queue.item("t").key("k"), queue.item("t")]).await;
    let batch = queue.lease_for(ALL, SHORT).await;
    assert_eq!(renew(&queue.reopened().await, &batch.token, LONG).await, 2);
    queue.context.outlive(SHORT).await;
    assert!(queue.lease(ALL).await.items.is_empty());
    queue.finish(&batch).await;
}

async fn late_renewal_keeps_items_not_leased_again(queue: TestQueue) {
    queue.accepted(&[queue.item("t")]).await;
    let batch = queue.lapsed(1).await;
    assert_eq!(renew(&queue, &batch.token, LONG).await, 1);
    assert!(queue.lease(1).await.items.is_empty());
    assert_eq!(queue.counts().await, (0, 1, 0));
}

async fn renew_returns_the_number_of_leases(queue: TestQueue) {
    queue.accepted(&[(); 5].map(|()| queue.item("t"))).await;
    let batch = queue.lease(4).await;
    assert_eq!(renew(&queue, &batch.token, LONG).await, 4);
    let held = batch.ids();
    queue.done(&batch, held[0], ack(LONG)).await;
    queue.done(&batch, held[1], retry(LONG)).await;
    queue.done(&batch, held[2], bury(false)).await;
    assert_eq!(renew(&queue, &batch.token, LONG).await, 1);
    assert_eq!(renew(&queue, &Token::presented("unknown"), LONG).await, 0);
}

async fn renewal_after_another_lease_changes_nothing(queue: TestQueue) {
    queue.accepted(&[queue.item("t")]).await;
    let first = queue.lapsed(1).await;
    let second = queue.lease(1).await;
    assert_eq!(renew(&queue, &first.token, SHORT).await, 0);
    queue.context.outlive(SHORT).await;
    assert!(queue.lease(1).await.items.is_empty(), "the second lease was cut short");
    queue.finish(&second).await;
}

async fn attempts_count_leases(queue: TestQueue) {
    let [id] = queue.keyed(["k"]).await;
    for attempt in 1..=4 {
        let batch = queue.lease(1).await;
        assert_eq!(batch.attempts(), [attempt]);
        queue.done(&batch, id, retry(Duration::ZERO)).await;
    }
}

async fn uncounted_retry_does_not_count_its_attempt(queue: TestQueue) {
    let [id] = queue.keyed(["k"]).await;
    for (attempt, outcome) in [
        (1, uncounted_retry(Duration::ZERO)),
        (1, uncounted_retry(Duration::ZERO)),
        (1, retry(Duration::ZERO)),
        (2, uncounted_retry(Duration::ZERO)),
        (2, retry(Duration::ZERO)),
    ] {
        let batch = queue.lease(1).await;
        assert_eq!(batch.attempts(), [attempt]);
        queue.done(&batch, id, outcome).await;
    }
}

async fn lapsed_lease_counts_as_an_attempt(queue: TestQueue) {
    let [id] = queue.keyed(["k"]).await;
    queue.lapsed(1).await;
    let batch = queue.lapsed(1).await;
    assert_eq!(batch.attempts(), [2]);
    let batch = queue.lease(1).await;
    assert_eq!(batch.attempts(), [3]);
    // The uncounted retry undoes its own attempt, not those of the lapsed leases.
    queue.done(&batch, id, uncounted_retry(Duration::ZERO)).await;
    assert_eq!(queue.lease(1).await.attempts(), [3]);
}

async fn fences_grow_with_every_lease_of_an_item(queue: TestQueue) {
    let other = queue.reopened().await;
    let [id] = queue.keyed(["k"]).await;
    let mut fences = vec![queue.lapsed(1).await.items[0].fence];
    for (node, outcome) in [
        (&queue, retry(Duration::ZERO)),
        (&other, uncounted_retry(Duration::ZERO)),
        (&queue, uncounted_retry(Duration::ZERO)),
        (&other, bury(true)),
        (&queue, retry(Duration::ZERO)),
    ] {
        let batch = node.lease(1).await;
        fences.push(batch.items[0].fence);
        let buried = matches!(outcome, hapax_core::queue::ItemOutcome::Bury { .. });
        node.done(&batch, id, outcome).await;
        if buried {
            assert!(queue.context.store.requeue(&queue.name, None, id).await.unwrap());
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

async fn tenants_share_a_queue_and_keep_their_items(queue: TestQueue) {
    let guest = queue.context.tenant.scoped("guest").unwrap();
    let (mine, theirs) = (queue.item("t"), hapax_core::queue::QueueItem::new(&guest, "t", "{}"));
    queue.accepted(&[mine.clone(), theirs.clone()]).await;
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.items.len(), 2);
    for leased in &batch.items {
        let whose = if leased.item.id == mine.id { &mine.tenant } else { &guest };
        assert_eq!(leased.item.tenant, *whose);
    }
    assert_ne!(mine.tenant, theirs.tenant);
}
