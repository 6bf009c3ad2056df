//! Why items failed, as an operator sees it.

use std::time::Duration;

use hapax_core::Tenant;
use hapax_core::queue::{DeadLetter, DeadQuery, DeadReason, ItemId, ItemOutcome, QueueItem};

use super::{ALL, TestQueue, sorted};
use crate::context::SHORT;
use crate::suite::laws;

laws![
    TestQueue::new;
    dead_item_keeps_the_reasons_of_its_failures,
    dead_item_keeps_the_last_ten_reasons,
    dead_item_keeps_reasons_as_lines,
    requeued_item_has_no_earlier_reasons,
    repeated_reason_of_uncounted_retries_is_kept_once,
    dead_items_are_filtered_by_their_newest_reason,
    dead_reasons_are_counted_most_frequent_first,
    dead_reasons_are_counted_by_tenant,
];

fn retried(reason: &str, counts: bool) -> ItemOutcome {
    let after = Duration::ZERO;
    ItemOutcome::Retry { after, counts, reason: reason.into(), keeps_place: true }
}

fn buried(reason: &str) -> ItemOutcome {
    ItemOutcome::Bury { reason: reason.into(), blocks: false }
}

/// Leases the item alone, and ends the lease with this outcome.
async fn fail(queue: &TestQueue, item: ItemId, outcome: ItemOutcome) {
    let batch = queue.lease(ALL).await;
    assert_eq!(batch.ids(), [item]);
    queue.done(&batch, item, outcome).await;
}

async fn letters(queue: &TestQueue, whose: Option<&Tenant>, query: DeadQuery) -> Vec<DeadLetter> {
    queue.context.store.dead(&queue.name, whose, &query).await.expect("the store answers")
}

/// The only dead letter of the queue.
async fn letter(queue: &TestQueue) -> DeadLetter {
    let letters = letters(queue, None, DeadQuery::new(10)).await;
    let [letter] = letters.try_into().expect("one dead letter");
    letter
}

async fn reasons(queue: &TestQueue, whose: Option<&Tenant>, at_most: u32) -> Vec<DeadReason> {
    let found = queue.context.store.dead_reasons(&queue.name, whose, at_most).await;
    found.expect("the store answers")
}

fn counts(reasons: &[DeadReason]) -> Vec<(&str, u64)> {
    reasons.iter().map(|reason| (&*reason.reason, reason.count)).collect()
}

fn texts(letter: &DeadLetter) -> Vec<&str> {
    letter.errors.iter().map(|reason| &**reason).collect()
}

async fn dead_item_keeps_the_reasons_of_its_failures(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    fail(&queue, item, retried("no answer", true)).await;
    fail(&queue, item, retried("no answer", true)).await;
    fail(&queue, item, retried("away", false)).await;
    let _lapsed = queue.lapsed(1).await;
    fail(&queue, item, buried("refused")).await;
    let letter = letter(&queue.reopened().await).await;
    assert_eq!(texts(&letter), ["no answer", "no answer", "away", "refused"], "oldest first");
    assert_eq!((&*letter.reason, letter.attempts), ("refused", 4));
}

async fn dead_item_keeps_the_last_ten_reasons(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    for failure in 1..12 {
        fail(&queue, item, retried(&failure.to_string(), true)).await;
    }
    fail(&queue, item, buried("12")).await;
    let letter = letter(&queue).await;
    assert_eq!(texts(&letter), ["3", "4", "5", "6", "7", "8", "9", "10", "11", "12"]);
    assert_eq!(&*letter.reason, "12");
}

async fn dead_item_keeps_reasons_as_lines(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    fail(&queue, item, retried("", true)).await;
    fail(&queue, item, retried("line\nof th\u{e9} \0sink\r", true)).await;
    fail(&queue, item, retried("", true)).await;
    fail(&queue, item, buried(&"\u{1f95a}".repeat(1500))).await;
    let long = "\u{1f95a}".repeat(1000);
    let letter = letter(&queue).await;
    assert_eq!(texts(&letter), ["line of th\u{e9}  sink ", &long], "without empty ones");
    assert_eq!(&*letter.reason, long);
}

async fn requeued_item_has_no_earlier_reasons(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    fail(&queue, item, retried("first", true)).await;
    fail(&queue, item, buried("second")).await;
    let store = &queue.context.store;
    assert!(store.requeue(&queue.name, None, item).await.expect("the store answers"));
    let waiting = store.waiting(&queue.name, None, 10).await.expect("the store answers");
    assert_eq!(waiting[0].reason, None);
    fail(&queue, item, buried("third")).await;
    assert_eq!(texts(&letter(&queue).await), ["third"]);
}

async fn repeated_reason_of_uncounted_retries_is_kept_once(queue: TestQueue) {
    let [item] = queue.keyed(["k"]).await;
    fail(&queue, item, retried("refused", true)).await;
    for reason in ["away", "away", "away", "full", "away", "away"] {
        fail(&queue, item, retried(reason, false)).await;
    }
    fail(&queue, item, buried("away")).await;
    let letter = letter(&queue).await;
    assert_eq!(texts(&letter), ["refused", "away", "full", "away", "away"]);
}

async fn dead_items_are_filtered_by_their_newest_reason(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let mut items = [(); 7].map(|()| queue.item("t"));
    items[6] = QueueItem::new(&guest, "t", "{}");
    let all = queue.accepted(&items).await;
    let batch = queue.lease(ALL).await;
    for id in &all {
        queue.done(&batch, *id, retried("timeout", true)).await;
    }
    let batch = queue.lease(ALL).await;
    let newest = ["timeout", "refused", "timeout", "", "time", "timeout", "timeout"];
    for (id, reason) in all.iter().zip(newest) {
        queue.done(&batch, *id, buried(reason)).await;
    }
    let found = async |whose: Option<&Tenant>, query: DeadQuery| -> Vec<ItemId> {
        letters(&queue, whose, query).await.iter().map(|letter| letter.id).collect()
    };
    let by = |reason: &str, at_most| DeadQuery::new(at_most).reason(Some(reason.into()));
    // An empty reason is none: the one before it is the newest.
    let timeouts = sorted(&[all[0], all[2], all[3], all[5], all[6]]);
    assert_eq!(found(None, by("timeout", 10)).await, timeouts);
    assert_eq!(found(Some(&guest), by("timeout", 10)).await, all[6..]);
    assert_eq!(found(None, by("refused", 10)).await, all[1..2]);
    assert_eq!(found(None, by("time", 10)).await, all[4..5], "the whole reason");
    for none in ["", "refused\ntimeout", "TIMEOUT", "%"] {
        assert_eq!(found(None, by(none, 10)).await, [], "{none:?}");
    }
    let first = found(None, by("timeout", 2)).await;
    assert_eq!(first, timeouts[..2]);
    let next = by("timeout", 2).after(first.last().copied());
    assert_eq!(found(None, next).await, timeouts[2..4]);
}

async fn dead_reasons_are_counted_most_frequent_first(queue: TestQueue) {
    assert_eq!(reasons(&queue, None, 10).await, []);
    let bury_next = async |reason: &str| {
        let [item] = queue.keyed(["k"]).await;
        fail(&queue, item, retried("earlier", true)).await;
        fail(&queue, item, buried(reason)).await;
    };
    for reason in ["b", "many", "a", "some"] {
        bury_next(reason).await;
    }
    queue.context.outlive(SHORT).await;
    for reason in ["some", "many", "many"] {
        bury_next(reason).await;
    }
    let found = reasons(&queue.reopened().await, None, 10).await;
    assert_eq!(counts(&found), [("many", 3), ("some", 2), ("a", 1), ("b", 1)]);
    assert_eq!(reasons(&queue, None, 3).await, found[..3]);
    for reason in &found {
        let query = DeadQuery::new(10).reason(Some(reason.reason.clone()));
        let times: Vec<_> = letters(&queue, None, query).await.iter().map(|dead| dead.at).collect();
        assert_eq!(Some(reason.first_at), times.iter().min().copied());
        assert_eq!(Some(reason.last_at), times.iter().max().copied());
    }
}

async fn dead_reasons_are_counted_by_tenant(queue: TestQueue) {
    let guest = queue.context.other_tenant();
    let theirs = QueueItem::new(&guest, "t", "{}");
    queue.accepted(&[queue.item("t"), theirs.clone(), queue.item("t")]).await;
    let batch = queue.lease(ALL).await;
    for id in batch.ids() {
        let reason = if id == theirs.id { "theirs" } else { "mine" };
        queue.done(&batch, id, buried(reason)).await;
    }
    assert_eq!(counts(&reasons(&queue, None, 10).await), [("mine", 2), ("theirs", 1)]);
    assert_eq!(counts(&reasons(&queue, Some(&guest), 10).await), [("theirs", 1)]);
    assert_eq!(counts(&reasons(&queue, Some(&queue.context.tenant), 10).await), [("mine", 2)]);
    assert_eq!(reasons(&queue, Some(&Tenant::default()), 10).await, []);
}
