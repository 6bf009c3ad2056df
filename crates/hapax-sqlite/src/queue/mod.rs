//! `Queue` on SQLite: the writer thread runs every step, the operator's thread counts and lists.

mod dead;
mod enqueue;
mod item;
mod lease;
mod oversee;
mod resolve;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, Resolved,
};
use hapax_core::{Key, Queue, StoreResult, Tenant, Token, Watch};

use crate::SqliteStore;
use crate::session::Session;
use crate::writer::WriteInfo;

pub(crate) use enqueue::enqueue;
#[cfg(feature = "sqlx")]
pub(crate) use {enqueue::FORGET_ITEM, item::INSERT_ITEM, item::ItemColumns};

/// The weight of an item in a batch, beside its payload: writing its row takes as long as this many
/// bytes.
const ITEM_BYTES: usize = 1024;

/// Values of the column `state`; `v2.sql` describes all of them.
mod state {
    pub(super) const IN_FLIGHT: i64 = 3;
    pub(super) const DEAD_AND_BLOCKS: i64 = 4;
    pub(super) const DEAD: i64 = 5;
    pub(super) const DONE: i64 = 6;
}

fn arrivals_digest(queue: &QueueName) -> Vec<u64> {
    queue.arrivals_key().iter().map(Key::digest).collect()
}

#[async_trait]
impl Queue for SqliteStore {
    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>> {
        let bytes = items.iter().map(|item| item.payload.len() + ITEM_BYTES).sum();
        let (name, items) = (queue.clone(), items.to_vec());
        let enqueue = move |session: Session<'_>| enqueue(session, &name, &items);
        let wakes = arrivals_digest(queue);
        self.write(WriteInfo { bytes, wakes, ..WriteInfo::default() }, enqueue).await
    }

    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>> {
        let (queue, take) = (queue.clone(), take.clone());
        let bytes = take.max_items.saturating_mul(ITEM_BYTES);
        let write = WriteInfo { bytes, ..WriteInfo::frees_room() };
        self.write(write, move |session| lease::lease(session, &queue, &take)).await
    }

    async fn renew(&self, queue: &QueueName, token: &Token, lease: Duration) -> StoreResult<u64> {
        let (queue, token) = (queue.clone(), token.clone());
        let renew = move |session: Session<'_>| resolve::renew(session, &queue, &token, lease);
        self.write(WriteInfo::frees_room(), renew).await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let bytes = outcomes.len().saturating_mul(ITEM_BYTES);
        let (name, token, outcomes) = (queue.clone(), token.clone(), outcomes.to_vec());
        let resolve =
            move |session: Session<'_>| resolve::resolve(session, &name, &token, &outcomes);
        let wakes = arrivals_digest(queue);
        self.write(WriteInfo { bytes, wakes, ..WriteInfo::frees_room() }, resolve).await
    }

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth> {
        let (queue, whose) = (queue.clone(), whose.cloned());
        self.read_as_operator(move |session| oversee::depth(session, &queue, whose.as_ref())).await
    }

    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        let (queue, whose) = (queue.clone(), whose.cloned());
        self.read_as_operator(move |session| {
            oversee::waiting(session, &queue, whose.as_ref(), at_most)
        })
        .await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        let (queue, whose, query) = (queue.clone(), whose.cloned(), query.clone());
        self.read_as_operator(move |session| dead::dead(session, &queue, whose.as_ref(), &query))
            .await
    }

    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        let (queue, whose) = (queue.clone(), whose.cloned());
        self.read_as_operator(move |session| {
            dead::dead_reasons(session, &queue, whose.as_ref(), at_most)
        })
        .await
    }

    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>> {
        let (queue, whose) = (queue.clone(), whose.cloned());
        self.read_as_operator(move |session| dead::dead_item(session, &queue, whose.as_ref(), id))
            .await
    }

    async fn queues(&self) -> StoreResult<Vec<QueueName>> {
        self.read_as_operator(oversee::queues).await
    }

    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool> {
        let (name, whose) = (queue.clone(), whose.cloned());
        let write = WriteInfo { wakes: arrivals_digest(queue), ..WriteInfo::frees_room() };
        self.write(write, move |session| {
            dead::resolve_dead(session, &name, whose.as_ref(), id, action)
        })
        .await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        queue.arrivals_key().map_or_else(Watch::never, |key| self.watch_key(&key))
    }
}
