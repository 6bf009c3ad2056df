//! Ack, retry and bury, by the worker that holds the lease and by others.

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{ItemId, ItemOutcome, Resolved};

use super::{ALL, LeasedTestItems, TestQueue, ack, bury, retry, uncounted_retry};
use crate::context::{LONG, SHORT};
use crate::suite::laws;

laws![
    TestQueue::new;
    acknowledged_item_is_gone,
    ack_repeated_by_its_worker_is_done,
    wrong_token_changes_nothing,
    unknown_id_is_lost,
    item_not_in_flight_cannot_be_resolved,
    late_resolve_before_another_lease_is_done,
    late_resolve_after_another_lease_is_lost,
    late_resolve_after_another_ack_is_lost,
    retry_is_due_after_its_delay,
    retry_without_delay_is_due_at_once,
    outcomes_of_one_call_are_answered_separately,
    ack_works_on_another_node,
];

fn every_outcome() -> [ItemOutcome; 4] {
    [ack(LONG), retry(Duration::ZERO), uncounted_retry(Duration::ZERO), bury(true)]
}

async fn lost(queue: &TestQueue, token: &Token, id: ItemId) {
    let before = queue.counts().await;
    for outcome in every_outcome() {
        let answer = queue.resolve_one(token, id, outcome.clone()).await;
        assert_eq!(answer, Resolved::Lost, "{outcome:?}");
        assert_eq!(queue.counts().await, before, "{outcome:?}");
    }
}

async fn one(queue: &TestQueue) -> (ItemId, LeasedTestItems) {
    let [id] = queue.keyed(["k"]).await;
    let batch = queue.lease(1).await;
    assert_eq!(batch.ids(), [id]);
    (id, batch)
}

async fn acknowledged_item_is_gone(queue: TestQueue) {
    for retention in [Duration::ZERO, LONG] {
        let (id, batch) = one(&queue).await;
        queue.done(&batch, id, ack(retention)).await;
        assert_eq!(queue.counts().await, (0, 0, 0));
        assert!(queue.lease(ALL).await.items.is_empty());
    }
}

async fn ack_repeated_by_its_worker_is_done(queue: TestQueue) {
    let (id, batch) = one(&queue).await;
    for _ in 0..3 {
        queue.done(&batch, id, ack(LONG)).await;
    }
    let stranger = Token::presented("stranger");
    assert_eq!(queue.resolve_one(&stranger, id, ack(LONG)).await, Resolved::Lost);
    for outcome in every_outcome().into_iter().skip(1) {
        assert_eq!(queue.resolve_one(&batch.token, id, outcome).await, Resolved::Lost);
    }
    assert_eq!(queue.counts().await, (0, 0, 0));
}

async fn wrong_token_changes_nothing(queue: TestQueue) {
    let (id, batch) = one(&queue).await;
    for wrong in ["", "x", &batch.token.as_str()[1..], &format!("{}x", batch.token.as_str())] {
        lost(&queue, &Token::presented(wrong), id).await;
    }
    queue.finish(&batch).await;
}

async fn unknown_id_is_lost(queue: TestQueue) {
    let (_, batch) = one(&queue).await;
    lost(&queue, &batch.token, ItemId::fresh()).await;
}

async fn item_not_in_flight_cannot_be_resolved(queue: TestQueue) {
    let (id, batch) = one(&queue).await;
    queue.done(&batch, id, retry(Duration::ZERO)).await;
    lost(&queue, &batch.token, id).await;
    let batch = queue.lease(1).await;
    queue.done(&batch, id, bury(true)).await;
    lost(&queue, &batch.token, id).await;
    assert!(queue.context.store.requeue(&queue.name, None, id).await.unwrap());
    lost(&queue, &batch.token, id).await;
    assert_eq!(queue.lease(1).await.ids(), [id]);
}

async fn late_resolve_before_another_lease_is_done(queue: TestQueue) {
    for (key, outcome, counts) in
        [("a", ack(LONG), (0, 0, 0)), ("b", retry(LONG), (1, 0, 0)), ("c", bury(true), (1, 0, 1))]
    {
        let [id] = queue.keyed([key]).await;
        let batch = queue.lapsed(1).await;
        queue.done(&batch, id, outcome).await;
        assert_eq!(queue.counts().await, counts);
    }
    assert!(queue.lease(ALL).await.items.is_empty());
}

async fn late_resolve_after_another_lease_is_lost(queue: TestQueue) {
    let [id] = queue.keyed(["k"]).await;
    let first = queue.lapsed(1).await;
    let second = queue.lapsed(1).await;
    lost(&queue, &first.token, id).await;
    let third = queue.lease(1).await;
    lost(&queue, &first.token, id).await;
    lost(&queue, &second.token, id).await;
    assert_eq!(third.attempts(), [3]);
    queue.finish(&third).await;
}

async fn late_resolve_after_another_ack_is_lost(queue: TestQueue) {
    let [id] = queue.keyed(["k"]).await;
    let first = queue.lapsed(1).await;
    let second = queue.lease(1).await;
    queue.finish(&second).await;
    lost(&queue, &first.token, id).await;
    queue.done(&second, id, ack(LONG)).await;
}

async fn retry_is_due_after_its_delay(queue: TestQueue) {
    let [far, near] = queue.keyed(["far", "near"]).await;
    let batch = queue.lease(ALL).await;
    queue.done(&batch, far, retry(LONG)).await;
    queue.done(&batch, near, retry(SHORT)).await;
    queue.context.outlive(SHORT).await;
    let batch = queue.lease(ALL).await;
    assert_eq!((batch.ids(), batch.attempts()), (vec![near], vec![2]));
    assert_eq!(queue.counts().await, (1, 1, 0));
}

async fn retry_without_delay_is_due_at_once(queue: TestQueue) {
    let (id, batch) = one(&queue).await;
    queue.done(&batch, id, retry(Duration::ZERO)).await;
    assert_eq!(queue.counts().await, (1, 0, 0));
    assert_eq!(queue.lease(1).await.attempts(), [2]);
}

async fn outcomes_of_one_call_are_answered_separately(queue: TestQueue) {
    let [acked, retried, given_back, buried, unblocked, other] =
        queue.keyed(["a", "b", "c", "d", "e", "f"]).await;
    let batch = queue.lease(5).await;
    let held = batch.ids();
    assert_eq!(held.len(), 5, "everything is due, and five were asked for");
    // The lease may take any five of the six.
    let missing = [acked, retried, given_back, buried, unblocked, other]
        .into_iter()
        .find(|id| !held.contains(id))
        .unwrap();
    let outcomes = [
        (missing, ack(LONG)),
        (held[0], ack(LONG)),
        (ItemId::fresh(), retry(LONG)),
        (held[1], retry(Duration::ZERO)),
        (held[2], uncounted_retry(Duration::ZERO)),
        (held[3], bury(true)),
        (held[4], bury(false)),
    ];
    let (done, lost) = (Resolved::Done, Resolved::Lost);
    let expected = [lost, done, lost, done, done, done, done];
    assert_eq!(queue.resolve(&batch.token, &outcomes).await, expected);
    assert_eq!(queue.counts().await, (3, 0, 2));
    let next = queue.lease(ALL).await;
    for leased in &next.items {
        assert_eq!(leased.attempt, if leased.item.id == held[1] { 2 } else { 1 });
    }
    assert_eq!(next.sorted(), super::sorted(&[missing, held[1], held[2]]));
    assert_eq!(queue.resolve(&batch.token, &[]).await, []);
}

async fn ack_works_on_another_node(queue: TestQueue) {
    let (id, batch) = one(&queue).await;
    let other = queue.reopened().await;
    other.done(&batch, id, ack(LONG)).await;
    queue.done(&batch, id, ack(LONG)).await;
    assert_eq!(queue.counts().await, (0, 0, 0));
}
