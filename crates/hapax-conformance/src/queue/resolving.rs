//! Ends of leases, and who may bring them about.

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{ItemId, ItemOutcome, Resolved};

use super::{ALL, Desk, Hand, ack, bury, retry, uncounted_retry};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
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

async fn lost(desk: &Desk, token: &Token, id: ItemId) {
    let before = desk.counts().await;
    for outcome in every_outcome() {
        let answer = desk.resolve_one(token, id, outcome.clone()).await;
        assert_eq!(answer, Resolved::Lost, "{outcome:?}");
        assert_eq!(desk.counts().await, before, "{outcome:?}");
    }
}

async fn one(desk: &Desk) -> (ItemId, Hand) {
    let [id] = desk.keyed(["k"]).await;
    let hand = desk.lease(1).await;
    assert_eq!(hand.ids(), [id]);
    (id, hand)
}

async fn acknowledged_item_is_gone(s: Scene) {
    let desk = Desk::new(s);
    for remember in [Duration::ZERO, LONG] {
        let (id, hand) = one(&desk).await;
        desk.done(&hand, id, ack(remember)).await;
        assert_eq!(desk.counts().await, (0, 0, 0));
        assert!(desk.lease(ALL).await.items.is_empty());
    }
}

async fn ack_repeated_by_its_worker_is_done(s: Scene) {
    let desk = Desk::new(s);
    let (id, hand) = one(&desk).await;
    for _ in 0..3 {
        desk.done(&hand, id, ack(LONG)).await;
    }
    let stranger = Token::presented("stranger");
    assert_eq!(desk.resolve_one(&stranger, id, ack(LONG)).await, Resolved::Lost);
    for outcome in every_outcome().into_iter().skip(1) {
        assert_eq!(desk.resolve_one(&hand.token, id, outcome).await, Resolved::Lost);
    }
    assert_eq!(desk.counts().await, (0, 0, 0));
}

async fn wrong_token_changes_nothing(s: Scene) {
    let desk = Desk::new(s);
    let (id, hand) = one(&desk).await;
    for wrong in ["", "x", &hand.token.as_str()[1..], &format!("{}x", hand.token.as_str())] {
        lost(&desk, &Token::presented(wrong), id).await;
    }
    desk.finish(&hand).await;
}

async fn unknown_id_is_lost(s: Scene) {
    let desk = Desk::new(s);
    let (_, hand) = one(&desk).await;
    lost(&desk, &hand.token, ItemId::fresh()).await;
}

async fn item_not_in_flight_cannot_be_resolved(s: Scene) {
    let desk = Desk::new(s);
    let (id, hand) = one(&desk).await;
    desk.done(&hand, id, retry(Duration::ZERO)).await;
    lost(&desk, &hand.token, id).await;
    let hand = desk.lease(1).await;
    desk.done(&hand, id, bury(true)).await;
    lost(&desk, &hand.token, id).await;
    assert!(desk.s.store.requeue(&desk.queue, None, id).await.unwrap());
    lost(&desk, &hand.token, id).await;
    assert_eq!(desk.lease(1).await.ids(), [id]);
}

async fn late_resolve_before_another_lease_is_done(s: Scene) {
    let desk = Desk::new(s);
    for (key, outcome, counts) in
        [("a", ack(LONG), (0, 0, 0)), ("b", retry(LONG), (1, 0, 0)), ("c", bury(true), (1, 0, 1))]
    {
        let [id] = desk.keyed([key]).await;
        let hand = desk.lapsed(1).await;
        desk.done(&hand, id, outcome).await;
        assert_eq!(desk.counts().await, counts);
    }
    assert!(desk.lease(ALL).await.items.is_empty());
}

async fn late_resolve_after_another_lease_is_lost(s: Scene) {
    let desk = Desk::new(s);
    let [id] = desk.keyed(["k"]).await;
    let first = desk.lapsed(1).await;
    let second = desk.lapsed(1).await;
    lost(&desk, &first.token, id).await;
    let third = desk.lease(1).await;
    lost(&desk, &first.token, id).await;
    lost(&desk, &second.token, id).await;
    assert_eq!(third.attempts(), [3]);
    desk.finish(&third).await;
}

async fn late_resolve_after_another_ack_is_lost(s: Scene) {
    let desk = Desk::new(s);
    let [id] = desk.keyed(["k"]).await;
    let first = desk.lapsed(1).await;
    let second = desk.lease(1).await;
    desk.finish(&second).await;
    lost(&desk, &first.token, id).await;
    desk.done(&second, id, ack(LONG)).await;
}

async fn retry_is_due_after_its_delay(s: Scene) {
    let desk = Desk::new(s);
    let [far, near] = desk.keyed(["far", "near"]).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, far, retry(LONG)).await;
    desk.done(&hand, near, retry(SHORT)).await;
    desk.s.outlive(SHORT).await;
    let hand = desk.lease(ALL).await;
    assert_eq!((hand.ids(), hand.attempts()), (vec![near], vec![2]));
    assert_eq!(desk.counts().await, (1, 1, 0));
}

async fn retry_without_delay_is_due_at_once(s: Scene) {
    let desk = Desk::new(s);
    let (id, hand) = one(&desk).await;
    desk.done(&hand, id, retry(Duration::ZERO)).await;
    assert_eq!(desk.counts().await, (1, 0, 0));
    assert_eq!(desk.lease(1).await.attempts(), [2]);
}

async fn outcomes_of_one_call_are_answered_separately(s: Scene) {
    let desk = Desk::new(s);
    let [acked, retried, given_back, buried, unblocked, other] =
        desk.keyed(["a", "b", "c", "d", "e", "f"]).await;
    let hand = desk.lease(5).await;
    let held = hand.ids();
    assert_eq!(held.len(), 5, "everything is due, and five were asked for");
    // Whichever five it gave: the sixth is not this holder's.
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
    assert_eq!(desk.resolve(&hand.token, &outcomes).await, expected);
    assert_eq!(desk.counts().await, (3, 0, 2));
    let next = desk.lease(ALL).await;
    for leased in &next.items {
        assert_eq!(leased.attempt, if leased.item.id == held[1] { 2 } else { 1 });
    }
    assert_eq!(next.sorted(), super::sorted(&[missing, held[1], held[2]]));
    assert_eq!(desk.resolve(&hand.token, &[]).await, []);
}

async fn ack_works_on_another_node(s: Scene) {
    let desk = Desk::new(s);
    let (id, hand) = one(&desk).await;
    let other = desk.reopened().await;
    other.done(&hand, id, ack(LONG)).await;
    desk.done(&hand, id, ack(LONG)).await;
    assert_eq!(desk.counts().await, (0, 0, 0));
}
