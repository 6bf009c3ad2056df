//! `Queue` on PostgreSQL.

mod dead;
pub(crate) mod enqueue;
mod lease;
mod oversee;
mod resolve;

use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, Resolved,
};
use hapax_core::{Queue, StoreError, StoreResult, Tenant, Token, Watch};

use crate::PostgresStore;
use crate::error::StatementError;
use crate::tx::lock::LockRetry;
use enqueue::EnqueueCall;

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>> {
        let call = EnqueueCall { queue: queue.clone(), items: items.to_vec() };
        let mut retry = LockRetry::new(self.pool.timeout);
        match self.enqueues.submit(call).await {
            Err(StoreError::Locked { .. }) => {}
            answer => return answer,
        }
        // Outside of batches, so that no other enqueue waits for this one, and one at a time, so that
        // at most one connection waits for a lock.
        let retries = async {
            let _turn = self.locked_enqueues.lock().await;
            let all: Vec<_> = items.iter().map(|item| (queue, item)).collect();
            loop {
                retry.wait().await?;
                match enqueue::enqueue(&mut self.pool.session(), &all).await {
                    Err(StatementError::Store(StoreError::Locked { .. })) => {}
                    answer => return answer,
                }
            }
        };
        let answers = self.pool.run(retries).await?;
        self.wake_queue(queue);
        Ok(answers)
    }

    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>> {
        let mut retry = LockRetry::new(self.pool.timeout);
        let lease = async {
            loop {
                match lease::lease(&mut self.pool.session(), queue, take).await? {
                    Some(leased) => return Ok(leased),
                    // Other nodes lease from the queue; finding nothing is not an error.
                    None if retry.wait().await.is_err() => return Ok(Vec::new()),
                    None => {}
                }
            }
        };
        self.pool.run(lease).await
    }

    async fn renew(&self, queue: &QueueName, token: &Token, lease: Duration) -> StoreResult<u64> {
        self.pool.run(resolve::renew(&mut self.pool.session(), queue, token, lease)).await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let mut session = self.pool.session();
        let resolved =
            self.pool.run(resolve::resolve(&mut session, queue, token, outcomes)).await?;
        // Items that waited behind these may be ready now.
        self.wake_queue(queue);
        Ok(resolved)
    }

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth> {
        self.pool.run(oversee::depth(&mut self.pool.session(), queue, whose)).await
    }

    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        self.pool.run(oversee::waiting(&mut self.pool.session(), queue, whose, at_most)).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        self.pool.run(dead::dead(&mut self.pool.session(), queue, whose, query)).await
    }

    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        self.pool.run(dead::dead_reasons(&mut self.pool.session(), queue, whose, at_most)).await
    }

    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>> {
        self.pool.run(dead::dead_item(&mut self.pool.session(), queue, whose, id)).await
    }

    async fn queues(&self) -> StoreResult<Vec<QueueName>> {
        self.pool.run(oversee::queues(&mut self.pool.session())).await
    }

    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool> {
        let mut session = self.pool.session();
        let found =
            self.pool.run(dead::resolve_dead(&mut session, queue, whose, id, action)).await?;
        self.wake_queue(queue);
        Ok(found)
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        queue.arrivals_key().map_or_else(Watch::never, |key| self.wakes.watch(&key))
    }
}

impl PostgresStore {
    /// Wakes the waiters of a queue, here and on other nodes. The store does so for its own calls; call
    /// this after the commit of a transaction of yours that enqueued items. Otherwise the waiters find
    /// them at their next poll.
    pub fn wake_queue(&self, queue: &QueueName) {
        queue.arrivals_key().iter().for_each(|key| self.wakes.wake(key));
    }
}
