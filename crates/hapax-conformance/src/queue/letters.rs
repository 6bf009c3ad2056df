//! Dead letters, and what an operator sees and does.

use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{DeadLetter, ItemId, QueueDepth, QueueItem};

use super::{ALL, Desk, ack, bury, retry, sorted};
use crate::scene::{LONG, SHORT, Scene};
use crate::subject::laws;

laws![
    dead_item_has_key_attempts_and_reason,
    dead_items_are_listed_in_pages_ordered_by_id,
    dead_items_are_listed_by_tenant,
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
    desk: &Desk,
    whose: Option<&Tenant>,
    after: Option<ItemId>,
    n: u32,
) -> Vec<DeadLetter> {
    desk.s.store.dead(&desk.queue, whose, after, n).await.expect("the store answers")
}

async fn requeue(desk: &Desk, whose: Option<&Tenant>, id: ItemId) -> bool {
    desk.s.store.requeue(&desk.queue, whose, id).await.expect("the store answers")
}

async fn discard(desk: &Desk, whose: Option<&Tenant>, id: ItemId) -> bool {
    desk.s.store.discard(&desk.queue, whose, id).await.expect("the store answers")
}

async fn depth(desk: &Desk, whose: Option<&Tenant>) -> QueueDepth {
    desk.s.store.depth(&desk.queue, whose).await.expect("the store answers")
}

/// Buries everything that is due.
async fn bury_all(desk: &Desk) {
    loop {
        let hand = desk.lease(ALL).await;
        if hand.items.is_empty() {
            return;
        }
        for id in hand.ids() {
            desk.done(&hand, id, bury(true)).await;
        }
    }
}

async fn dead_item_has_key_attempts_and_reason(s: Scene) {
    let desk = Desk::new(s);
    let (keyed, plain) = (desk.item("t").key("k\u{e9}y"), desk.item("t"));
    desk.accepted(&[keyed.clone(), plain.clone()]).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, keyed.id, retry(Duration::ZERO)).await;
    desk.done(&hand, plain.id, bury(false)).await;
    desk.done(&desk.lease(1).await, keyed.id, bury(true)).await;
    let letters = dead(&desk.reopened().await, None, None, 10).await;
    assert_eq!(letters.len(), 2);
    let of = |id| letters.iter().find(|letter| letter.id == id).unwrap();
    let (first, second) = (of(keyed.id), of(plain.id));
    assert_eq!((first.key.as_deref(), first.attempts), (Some("k\u{e9}y"), 2));
    assert_eq!((second.key.as_deref(), second.attempts), (None, 1));
    assert_eq!((&*first.reason, &*second.reason), ("never", "never"));
    assert!(first.at >= second.at, "buried later");
}

async fn dead_items_are_listed_in_pages_ordered_by_id(s: Scene) {
    let desk = Desk::new(s);
    // Not in the order of time: half of the ids are digests.
    let named = |i: usize| ItemId::named(&[desk.queue.as_str(), &i.to_string()]);
    let items = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9].map(|i| match i % 2 {
        0 => desk.item("t").id(named(i)),
        _ => desk.item("t"),
    });
    let ids = desk.accepted(&items).await;
    bury_all(&desk).await;
    let all: Vec<_> = dead(&desk, None, None, 100).await.iter().map(|letter| letter.id).collect();
    assert_eq!(all, sorted(&ids));
    let mut paged: Vec<ItemId> = Vec::new();
    for _ in 0..items.len() {
        let page = dead(&desk, None, paged.last().copied(), 4).await;
        paged.extend(page.iter().map(|letter| letter.id));
        if page.is_empty() {
            break;
        }
    }
    assert_eq!(paged, all);
}

async fn dead_items_are_listed_by_tenant(s: Scene) {
    let desk = Desk::new(s);
    let guest = Tenant::new(&format!("{}x", desk.s.tenant.as_str())).unwrap();
    let items = [desk.item("t"), QueueItem::new(&guest, "t", "{}"), desk.item("t")];
    let ids = desk.accepted(&items).await;
    bury_all(&desk).await;
    let listed = async |whose: Option<&Tenant>| -> Vec<ItemId> {
        dead(&desk, whose, None, 10).await.iter().map(|letter| letter.id).collect()
    };
    assert_eq!(listed(None).await, sorted(&ids));
    assert_eq!(listed(Some(&desk.s.tenant)).await, sorted(&[ids[0], ids[2]]));
    assert_eq!(listed(Some(&guest)).await, [ids[1]]);
    assert!(listed(Some(&Tenant::default())).await.is_empty());
}

async fn requeued_item_has_its_old_place_and_no_attempts(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    let hand = desk.lease(1).await;
    desk.done(&hand, first, retry(Duration::ZERO)).await;
    let hand = desk.lease(1).await;
    desk.done(&hand, first, bury(true)).await;
    assert!(requeue(&desk, None, first).await);
    assert_eq!(desk.counts().await, (3, 0, 0));
    let again = desk.reopened().await.lease(ALL).await;
    assert_eq!((again.ids(), again.attempts()), (vec![first, second, third], vec![1, 1, 1]));
    assert!(again.items[0].fence > hand.items[0].fence);
}

async fn requeued_item_of_an_unblocked_key_is_leased(s: Scene) {
    let desk = Desk::new(s);
    let [first, second, third] = desk.keyed(["k", "k", "k"]).await;
    desk.done(&desk.lease(1).await, first, bury(false)).await;
    let hand = desk.lease(1).await;
    assert_eq!(hand.ids(), [second]);
    assert!(requeue(&desk, Some(&desk.s.tenant), first).await);
    desk.finish(&hand).await;
    assert_eq!(desk.lease(ALL).await.ids(), [first, third]);
}

async fn discarded_item_is_gone_and_unblocks_its_key(s: Scene) {
    let desk = Desk::new(s);
    let items = [(); 2].map(|()| desk.item("t").key("k"));
    let ids = desk.accepted(&items).await;
    desk.done(&desk.lease(1).await, ids[0], bury(true)).await;
    assert!(discard(&desk, Some(&desk.s.tenant), ids[0]).await);
    assert_eq!(desk.counts().await, (1, 0, 0));
    assert!(!discard(&desk, None, ids[0]).await);
    assert!(!requeue(&desk, None, ids[0]).await);
    desk.accepted(&items[..1]).await;
    assert_eq!(desk.lease(ALL).await.ids(), [ids[1], ids[0]], "as a new one, behind the other");
}

async fn only_dead_items_are_requeued_or_discarded(s: Scene) {
    let desk = Desk::new(s);
    let ids = desk.accepted(&[desk.item("t").delay(LONG), desk.item("t"), desk.item("t")]).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, ids[1], ack(LONG)).await;
    for id in [ids[0], ids[1], ids[2], ItemId::fresh()] {
        assert!(!requeue(&desk, None, id).await);
        assert!(!discard(&desk, None, id).await);
    }
    assert_eq!(desk.counts().await, (1, 1, 0));
    desk.done(&hand, ids[2], ack(LONG)).await;
}

async fn dead_item_of_another_tenant_is_not_changed(s: Scene) {
    let desk = Desk::new(s);
    let guest = Tenant::new(&format!("{}x", desk.s.tenant.as_str())).unwrap();
    let ids = desk.accepted(&[desk.item("t")]).await;
    bury_all(&desk).await;
    assert!(!requeue(&desk, Some(&guest), ids[0]).await);
    assert!(!discard(&desk, Some(&guest), ids[0]).await);
    assert_eq!(desk.counts().await, (0, 0, 1));
    assert!(requeue(&desk, Some(&desk.s.tenant), ids[0]).await);
    bury_all(&desk).await;
    assert!(discard(&desk, Some(&desk.s.tenant), ids[0]).await);
}

async fn depth_counts_waiting_in_flight_and_dead_items(s: Scene) {
    let desk = Desk::new(s);
    desk.keyed(["a", "b", "c", "d"]).await;
    assert_eq!(desk.counts().await, (4, 0, 0));
    let hand = desk.lease(ALL).await;
    assert_eq!(desk.counts().await, (0, 4, 0));
    let held = hand.ids();
    desk.done(&hand, held[0], bury(true)).await;
    desk.done(&hand, held[1], ack(LONG)).await;
    desk.done(&hand, held[2], retry(LONG)).await;
    desk.accepted(&[desk.item("t").delay(LONG)]).await;
    desk.keyed(["a", "b", "c", "d"]).await;
    assert_eq!(desk.counts().await, (6, 1, 1));
    assert_eq!(desk.reopened().await.counts().await, (6, 1, 1));
    assert_eq!(desk.s.store.renew(&desk.queue, &hand.token, SHORT).await.unwrap(), 1);
    desk.s.outlive(SHORT).await;
    assert_eq!(desk.counts().await, (7, 0, 1), "a lapsed one waits");
}

async fn depth_has_the_age_of_the_oldest_item(s: Scene) {
    let desk = Desk::new(s);
    assert_eq!(depth(&desk, None).await.oldest_age, None);
    let [old] = desk.keyed(["old"]).await;
    desk.s.outlive(SHORT).await;
    let [dead] = desk.keyed(["dead"]).await;
    let age = depth(&desk, None).await.oldest_age.unwrap();
    assert!(age >= SHORT && age < LONG, "{age:?}");
    let hand = desk.lease(ALL).await;
    desk.done(&hand, dead, bury(true)).await;
    assert!(depth(&desk, None).await.oldest_age.unwrap() >= SHORT, "in flight is not done");
    desk.done(&hand, old, ack(LONG)).await;
    assert_eq!(depth(&desk, None).await.oldest_age, None, "neither done nor dead ones count");
}

async fn depth_is_counted_by_tenant(s: Scene) {
    let desk = Desk::new(s);
    let guest = Tenant::new(&format!("{}x", desk.s.tenant.as_str())).unwrap();
    let theirs = || QueueItem::new(&guest, "t", "{}").key("k");
    let first = theirs();
    desk.accepted(&[desk.item("t").key("k"), first.clone(), theirs(), theirs()]).await;
    let hand = desk.lease(ALL).await;
    desk.done(&hand, first.id, bury(true)).await;
    desk.accepted(&[theirs(), theirs(), desk.item("t").delay(LONG)]).await;
    let counts = |depth: QueueDepth| (depth.waiting, depth.in_flight, depth.dead);
    assert_eq!(counts(depth(&desk, None).await), (3, 3, 1));
    assert_eq!(counts(depth(&desk, Some(&guest)).await), (2, 2, 1));
    assert_eq!(counts(depth(&desk, Some(&desk.s.tenant)).await), (1, 1, 0));
    assert_eq!(depth(&desk, Some(&Tenant::default())).await, QueueDepth::default());
}
