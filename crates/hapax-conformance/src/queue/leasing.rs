//! One holder at a time, for as long as its lease lasts.

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::LeaseRequest;

use super::{ALL, Desk, Hand, ack, bury, retry, sorted, uncounted_retry};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
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

async fn renew(desk: &Desk, token: &Token, lease: Duration) -> u64 {
    desk.s.store.renew(&desk.queue, token, lease).await.expect("the store answers")
}

async fn leased_item_is_not_leased_again(s: Scene) {
    let desk = Desk::new(s);
    let other = desk.reopened().await;
    let ids = desk.accepted(&[desk.item("t").key("k"), desk.item("t")]).await;
    let hand = desk.lease(ALL).await;
    assert_eq!(hand.sorted(), sorted(&ids));
    for node in [&desk, &other] {
        assert!(node.lease(ALL).await.items.is_empty());
        assert_eq!(node.counts().await, (0, 2, 0));
    }
    desk.finish(&hand).await;
    assert!(other.lease(ALL).await.items.is_empty());
    assert_eq!(other.counts().await, (0, 0, 0));
}

async fn lease_takes_at_most_the_requested_number(s: Scene) {
    let desk = Desk::new(s);
    let items: Vec<_> = (0..10)
        .map(|i| if i % 2 == 0 { desk.item("t") } else { desk.item("t").key(&i.to_string()) })
        .collect();
    let ids = desk.accepted(&items).await;
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let hand = desk.lease(3).await;
        assert!(!hand.items.is_empty(), "{} of {} were handed out", seen.len(), ids.len());
        seen.extend(hand.ids());
    }
    assert_eq!(sorted(&seen), sorted(&ids));
    assert!(desk.lease(3).await.items.is_empty());
}

async fn lapsed_item_is_leased_again_with_a_greater_fence(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.accepted(&[desk.item("t").key("k"), desk.item("t")]).await;
    let first = desk.lapsed(ALL).await;
    assert_eq!(desk.counts().await, (2, 0, 0), "lapsed ones wait");
    let second = desk.reopened().await.lease(ALL).await;
    assert_eq!((second.sorted(), second.attempts()), (sorted(&ids), vec![2, 2]));
    for leased in &second.items {
        let before = first.items.iter().find(|before| before.item.id == leased.item.id).unwrap();
        assert!(leased.fence > before.fence);
        assert!(leased.age >= SHORT);
    }
}

async fn lease_repeated_with_its_token_returns_the_same_items(s: Scene) {
    let desk = Desk::new(s);
    let items: Vec<_> = (0..6).map(|_| desk.item("t").key("k")).collect();
    let ids = desk.accepted(&items).await;
    let take = LeaseRequest::new(2, LONG);
    let first = desk.take(&take).await;
    let other = desk.reopened().await;
    for (node, at_most) in [(&desk, 2), (&other, 6), (&desk, 3)] {
        let again = node.take(&LeaseRequest { max_items: at_most, ..take.clone() }).await;
        let told =
            |leased: &hapax_core::queue::LeasedItem| (leased.item.id, leased.attempt, leased.fence);
        let expected: Vec<_> = first.iter().map(told).collect();
        assert_eq!(again.iter().map(told).collect::<Vec<_>>(), expected);
    }
    assert_eq!(first.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), ids[..2]);
    assert_eq!(desk.counts().await, (4, 2, 0));
}

async fn lease_repeated_leaves_out_resolved_items(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.accepted(&[(); 5].map(|()| desk.item("t"))).await;
    let take = LeaseRequest::new(4, LONG);
    let hand = Hand { items: desk.take(&take).await, token: take.token.clone() };
    let held = hand.ids();
    desk.done(&hand, held[0], ack(LONG)).await;
    desk.done(&hand, held[1], retry(Duration::ZERO)).await;
    desk.done(&hand, held[2], bury(true)).await;
    let again = desk.take(&take).await;
    assert_eq!(again.iter().map(|leased| leased.item.id).collect::<Vec<_>>(), [held[3]]);
    assert_eq!(desk.counts().await, (2, 1, 1));
    assert_eq!(ids.len(), 5);
}

async fn lease_repeated_restarts_its_duration(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[desk.item("t")]).await;
    let take = LeaseRequest::new(1, LONG);
    desk.take(&take).await;
    // Shorter, not longer: a busy machine may be too late for what is short.
    desk.take(&LeaseRequest { lease: SHORT, ..take }).await;
    desk.s.outlive(SHORT).await;
    assert_eq!(desk.lease(1).await.attempts(), [2]);
}

async fn renewed_lease_ends_at_its_new_time(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[desk.item("t")]).await;
    let hand = desk.lease(1).await;
    assert_eq!(renew(&desk, &hand.token, SHORT).await, 1);
    desk.s.outlive(SHORT).await;
    assert_eq!(desk.lease(1).await.attempts(), [2]);
}

async fn renewed_lease_outlives_its_first_end(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[desk.item("t").key("k"), desk.item("t")]).await;
    let hand = desk.lease_for(ALL, SHORT).await;
    assert_eq!(renew(&desk.reopened().await, &hand.token, LONG).await, 2);
    desk.s.outlive(SHORT).await;
    assert!(desk.lease(ALL).await.items.is_empty());
    desk.finish(&hand).await;
}

async fn late_renewal_keeps_items_not_leased_again(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[desk.item("t")]).await;
    let hand = desk.lapsed(1).await;
    assert_eq!(renew(&desk, &hand.token, LONG).await, 1);
    assert!(desk.lease(1).await.items.is_empty());
    assert_eq!(desk.counts().await, (0, 1, 0));
}

async fn renew_returns_the_number_of_leases(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[(); 5].map(|()| desk.item("t"))).await;
    let hand = desk.lease(4).await;
    assert_eq!(renew(&desk, &hand.token, LONG).await, 4);
    let held = hand.ids();
    desk.done(&hand, held[0], ack(LONG)).await;
    desk.done(&hand, held[1], retry(LONG)).await;
    desk.done(&hand, held[2], bury(false)).await;
    assert_eq!(renew(&desk, &hand.token, LONG).await, 1);
    assert_eq!(renew(&desk, &Token::presented("nobody"), LONG).await, 0);
}

async fn renewal_after_another_lease_changes_nothing(s: Scene) {
    let desk = Desk::new(s);
    desk.accepted(&[desk.item("t")]).await;
    let first = desk.lapsed(1).await;
    let second = desk.lease(1).await;
    assert_eq!(renew(&desk, &first.token, SHORT).await, 0);
    desk.s.outlive(SHORT).await;
    assert!(desk.lease(1).await.items.is_empty(), "the second lease was cut short");
    desk.finish(&second).await;
}

async fn attempts_count_leases(s: Scene) {
    let desk = Desk::new(s);
    let [id] = desk.keyed(["k"]).await;
    for attempt in 1..=4 {
        let hand = desk.lease(1).await;
        assert_eq!(hand.attempts(), [attempt]);
        desk.done(&hand, id, retry(Duration::ZERO)).await;
    }
}

async fn uncounted_retry_does_not_count_its_attempt(s: Scene) {
    let desk = Desk::new(s);
    let [id] = desk.keyed(["k"]).await;
    for (attempt, outcome) in [
        (1, uncounted_retry(Duration::ZERO)),
        (1, uncounted_retry(Duration::ZERO)),
        (1, retry(Duration::ZERO)),
        (2, uncounted_retry(Duration::ZERO)),
        (2, retry(Duration::ZERO)),
    ] {
        let hand = desk.lease(1).await;
        assert_eq!(hand.attempts(), [attempt]);
        desk.done(&hand, id, outcome).await;
    }
}

async fn lapsed_lease_counts_as_an_attempt(s: Scene) {
    let desk = Desk::new(s);
    let [id] = desk.keyed(["k"]).await;
    desk.lapsed(1).await;
    let hand = desk.lapsed(1).await;
    assert_eq!(hand.attempts(), [2]);
    let hand = desk.lease(1).await;
    assert_eq!(hand.attempts(), [3]);
    // It takes back its own, not those that lapsed.
    desk.done(&hand, id, uncounted_retry(Duration::ZERO)).await;
    assert_eq!(desk.lease(1).await.attempts(), [3]);
}

async fn fences_grow_with_every_lease_of_an_item(s: Scene) {
    let desk = Desk::new(s);
    let other = desk.reopened().await;
    let [id] = desk.keyed(["k"]).await;
    let mut fences = vec![desk.lapsed(1).await.items[0].fence];
    for (node, outcome) in [
        (&desk, retry(Duration::ZERO)),
        (&other, uncounted_retry(Duration::ZERO)),
        (&desk, uncounted_retry(Duration::ZERO)),
        (&other, bury(true)),
        (&desk, retry(Duration::ZERO)),
    ] {
        let hand = node.lease(1).await;
        fences.push(hand.items[0].fence);
        let buried = matches!(outcome, hapax_core::queue::ItemOutcome::Bury { .. });
        node.done(&hand, id, outcome).await;
        if buried {
            assert!(desk.s.store.requeue(&desk.queue, None, id).await.unwrap());
        }
    }
    assert!(fences.is_sorted_by(|a, b| a < b), "{fences:?}");
}

async fn tenants_share_a_queue_and_keep_their_items(s: Scene) {
    let desk = Desk::new(s);
    let guest = desk.s.tenant.scoped("guest").unwrap();
    let (mine, theirs) = (desk.item("t"), hapax_core::queue::QueueItem::new(&guest, "t", "{}"));
    desk.accepted(&[mine.clone(), theirs.clone()]).await;
    let hand = desk.lease(ALL).await;
    assert_eq!(hand.items.len(), 2);
    for leased in &hand.items {
        let whose = if leased.item.id == mine.id { &mine.tenant } else { &guest };
        assert_eq!(leased.item.tenant, *whose);
    }
    assert_ne!(mine.tenant, theirs.tenant);
}
