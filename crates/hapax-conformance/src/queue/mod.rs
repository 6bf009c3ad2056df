//! The laws of `Queue`, one function each; its name is the sentence that it proves.

mod crowd;
mod enqueueing;
mod leasing;
mod letters;
mod ordering;
mod resolving;
mod walk;

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{
    Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueItem, QueueName, Resolved,
};

use crate::scene::{LONG, SHORT, Scene};
use crate::subject::Law;

pub(crate) fn laws() -> Vec<Law> {
    let files = [
        enqueueing::LAWS,
        leasing::LAWS,
        resolving::LAWS,
        ordering::LAWS,
        letters::LAWS,
        crowd::LAWS,
        walk::LAWS,
    ];
    files.concat()
}

/// More than any law enqueues.
const ALL: usize = 1000;

/// A scene with a queue of its own.
#[derive(Clone)]
struct Desk {
    s: Scene,
    queue: QueueName,
}

impl Desk {
    fn new(s: Scene) -> Self {
        let queue = QueueName::new(&format!("q{}", Token::random().as_str())).unwrap();
        Self { s, queue }
    }

    /// Another node on the same queue.
    async fn reopened(&self) -> Self {
        Self { s: self.s.reopened().await, ..self.clone() }
    }

    fn item(&self, topic: &str) -> QueueItem {
        QueueItem::new(&self.s.tenant, topic, "{}")
    }

    async fn enqueue(&self, items: &[QueueItem]) -> Vec<Enqueued> {
        let answers = self.s.store.enqueue(&self.queue, items).await.expect("the store answers");
        assert_eq!(answers.len(), items.len(), "one answer each");
        answers
    }

    /// Enqueues what must be new, and tells the ids.
    async fn accepted(&self, items: &[QueueItem]) -> Vec<ItemId> {
        let answers = self.enqueue(items).await;
        assert!(answers.iter().all(|answer| *answer == Enqueued::Accepted), "{answers:?}");
        items.iter().map(|item| item.id).collect()
    }

    /// Enqueues one item with each of these keys.
    async fn keyed<const N: usize>(&self, keys: [&str; N]) -> [ItemId; N] {
        let ids = self.accepted(&keys.map(|key| self.item("t").key(key))).await;
        std::array::from_fn(|i| ids[i])
    }

    async fn take(&self, take: &LeaseRequest) -> Vec<LeasedItem> {
        let leased = self.s.store.lease(&self.queue, take).await.expect("the store answers");
        assert!(leased.len() <= take.max_items, "more than asked for");
        leased
    }

    /// Leases up to `at_most` items for a long time, as somebody new.
    async fn lease(&self, at_most: usize) -> Hand {
        self.lease_for(at_most, LONG).await
    }

    async fn lease_for(&self, at_most: usize, lease: Duration) -> Hand {
        let take = LeaseRequest::new(at_most, lease);
        Hand { items: self.take(&take).await, token: take.token }
    }

    /// A hand with a lease that has just lapsed.
    async fn lapsed(&self, at_most: usize) -> Hand {
        let hand = self.lease_for(at_most, SHORT).await;
        self.s.outlive(SHORT).await;
        hand
    }

    async fn resolve(&self, token: &Token, outcomes: &[(ItemId, ItemOutcome)]) -> Vec<Resolved> {
        let answers = self.s.store.resolve(&self.queue, token, outcomes).await;
        let answers = answers.expect("the store answers");
        assert_eq!(answers.len(), outcomes.len(), "one answer each");
        answers
    }

    async fn resolve_one(&self, token: &Token, id: ItemId, outcome: ItemOutcome) -> Resolved {
        self.resolve(token, &[(id, outcome)]).await[0]
    }

    /// Resolves what must be held.
    async fn done(&self, hand: &Hand, id: ItemId, outcome: ItemOutcome) {
        assert_eq!(self.resolve_one(&hand.token, id, outcome).await, Resolved::Done);
    }

    /// Acknowledges everything in the hand.
    async fn finish(&self, hand: &Hand) {
        let outcomes: Vec<_> = hand.ids().into_iter().map(|id| (id, ack(LONG))).collect();
        let answers = self.resolve(&hand.token, &outcomes).await;
        assert!(answers.iter().all(|answer| *answer == Resolved::Done), "{answers:?}");
    }

    /// Waiting, in flight, dead.
    async fn counts(&self) -> (u64, u64, u64) {
        let depth = self.s.store.depth(&self.queue, None).await.expect("the store answers");
        (depth.waiting, depth.in_flight, depth.dead)
    }
}

/// What one holder was given.
struct Hand {
    token: Token,
    items: Vec<LeasedItem>,
}

impl Hand {
    fn ids(&self) -> Vec<ItemId> {
        self.items.iter().map(|leased| leased.item.id).collect()
    }

    /// The same without an order, for items that have none.
    fn sorted(&self) -> Vec<ItemId> {
        sorted(&self.ids())
    }

    fn attempts(&self) -> Vec<u32> {
        self.items.iter().map(|leased| leased.attempt).collect()
    }
}

fn sorted(ids: &[ItemId]) -> Vec<ItemId> {
    let mut ids = ids.to_vec();
    ids.sort();
    ids
}

fn ack(remember: Duration) -> ItemOutcome {
    ItemOutcome::Ack { retention: remember }
}

fn retry(after: Duration) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: true, reason: "not now".into() }
}

fn uncounted_retry(after: Duration) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: false, reason: "not my turn".into() }
}

fn bury(blocks: bool) -> ItemOutcome {
    ItemOutcome::Bury { reason: "never".into(), blocks }
}
