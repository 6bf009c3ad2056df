//! The laws of `Queue`.

mod concurrent_workers;
mod dead;
mod enqueue;
mod key_order;
mod lease;
mod random_walk;
mod reasons;
mod resolve;
mod waiting;

use std::time::Duration;

use hapax_core::Token;
use hapax_core::queue::{
    Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueItem, QueueName, Resolved,
};

use crate::context::{LONG, LawContext, SHORT};
use crate::suite::Law;

pub(crate) fn laws() -> Vec<Law> {
    let files = [
        enqueue::LAWS,
        lease::LAWS,
        resolve::LAWS,
        key_order::LAWS,
        dead::LAWS,
        reasons::LAWS,
        waiting::LAWS,
        concurrent_workers::LAWS,
        random_walk::LAWS,
    ];
    files.concat()
}

/// More than any law enqueues.
const ALL: usize = 1000;

/// A queue that no other law uses.
#[derive(Clone)]
pub(crate) struct TestQueue {
    context: LawContext,
    pub(crate) name: QueueName,
}

impl TestQueue {
    pub(crate) fn new(context: LawContext) -> Self {
        let name = QueueName::new(&format!("q{}", Token::random().as_str())).unwrap();
        Self { context, name }
    }

    /// Another node on the same queue.
    async fn reopened(&self) -> Self {
        Self { context: self.context.reopened().await, ..self.clone() }
    }

    pub(crate) fn item(&self, topic: &str) -> QueueItem {
        QueueItem::new(&self.context.tenant, topic, "{}")
    }

    async fn enqueue(&self, items: &[QueueItem]) -> Vec<Enqueued> {
        let answers =
            self.context.store.enqueue(&self.name, items).await.expect("the store answers");
        assert_eq!(answers.len(), items.len(), "one answer each");
        answers
    }

    /// Enqueues items that must be new, and returns their ids.
    pub(crate) async fn accepted(&self, items: &[QueueItem]) -> Vec<ItemId> {
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
        let leased = self.context.store.lease(&self.name, take).await.expect("the store answers");
        assert!(leased.len() <= take.max_items, "more than asked for");
        leased
    }

    /// Leases up to `at_most` items for a long time, with a new token.
    pub(crate) async fn lease(&self, at_most: usize) -> LeasedTestItems {
        self.lease_for(at_most, LONG).await
    }

    async fn lease_for(&self, at_most: usize, lease: Duration) -> LeasedTestItems {
        let take = LeaseRequest::new(at_most, lease);
        LeasedTestItems { items: self.take(&take).await, token: take.token }
    }

    /// Leases items and lets the lease lapse.
    async fn lapsed(&self, at_most: usize) -> LeasedTestItems {
        let batch = self.lease_for(at_most, SHORT).await;
        self.context.outlive(SHORT).await;
        batch
    }

    async fn resolve(&self, token: &Token, outcomes: &[(ItemId, ItemOutcome)]) -> Vec<Resolved> {
        let answers = self.context.store.resolve(&self.name, token, outcomes).await;
        let answers = answers.expect("the store answers");
        assert_eq!(answers.len(), outcomes.len(), "one answer each");
        answers
    }

    async fn resolve_one(&self, token: &Token, id: ItemId, outcome: ItemOutcome) -> Resolved {
        self.resolve(token, &[(id, outcome)]).await[0]
    }

    /// Resolves an item that the batch must hold.
    pub(crate) async fn done(&self, batch: &LeasedTestItems, id: ItemId, outcome: ItemOutcome) {
        assert_eq!(self.resolve_one(&batch.token, id, outcome).await, Resolved::Done);
    }

    /// Acknowledges all items of the batch.
    async fn finish(&self, batch: &LeasedTestItems) {
        let outcomes: Vec<_> = batch.ids().into_iter().map(|id| (id, ack(LONG))).collect();
        let answers = self.resolve(&batch.token, &outcomes).await;
        assert!(answers.iter().all(|answer| *answer == Resolved::Done), "{answers:?}");
    }

    /// The numbers of waiting, in-flight and dead items.
    pub(crate) async fn counts(&self) -> (u64, u64, u64) {
        let depth = self.context.store.depth(&self.name, None).await.expect("the store answers");
        (depth.waiting, depth.in_flight, depth.dead)
    }
}

/// The items of one lease, and its token.
pub(crate) struct LeasedTestItems {
    token: Token,
    items: Vec<LeasedItem>,
}

impl LeasedTestItems {
    pub(crate) fn ids(&self) -> Vec<ItemId> {
        self.items.iter().map(|leased| leased.item.id).collect()
    }

    /// The ids in sorted order, for items without a key.
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

pub(crate) fn ack(retention: Duration) -> ItemOutcome {
    ItemOutcome::Ack { retention }
}

fn retry(after: Duration) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: true, reason: "not now".into(), keeps_place: true }
}

fn uncounted_retry(after: Duration) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: false, reason: "not my turn".into(), keeps_place: true }
}

/// A retry after which the item has no key.
fn retry_without_key(after: Duration) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: true, reason: "pass by".into(), keeps_place: false }
}

pub(crate) fn bury(blocks: bool) -> ItemOutcome {
    ItemOutcome::Bury { reason: "never".into(), blocks }
}
