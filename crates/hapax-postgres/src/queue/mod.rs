//! `Queue` on PostgreSQL.

pub(crate) mod enqueue;
mod lease;
mod oversee;
mod resolve;

use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    DeadLetter, Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueDepth, QueueItem,
    QueueName, Resolved,
};
use hapax_core::{Queue, StoreError, Tenant, Token, Watch};

use crate::PostgresStore;
use crate::tx::lock::LockRetry;
use enqueue::EnqueueCall;

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.enqueues.submit(EnqueueCall { queue: queue.clone(), items: items.to_vec() }).await
    }

    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        let pool = &self.pool;
        let mut retry = LockRetry::new(pool.timeout);
        pool.run(async {
            loop {
                let mut connection = pool.connection().await?;
                let leased = lease::lease(&mut connection, queue, take).await?;
                drop(connection);
                match leased {
                    Some(leased) => return Ok(leased),
                    // Other nodes lease from the queue; finding nothing is not an error.
                    None if retry.wait().await.is_err() => return Ok(Vec::new()),
                    None => {}
                }
            }
        })
        .await
    }

    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        let pool = &self.pool;
        pool.run(async { resolve::renew(&mut pool.connection().await?, queue, token, lease).await })
            .await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        let pool = &self.pool;
        let resolved = pool
            .run(async {
                resolve::resolve(&mut pool.connection().await?, queue, token, outcomes).await
            })
            .await?;
        // Items that waited behind these may be ready now.
        self.wake_queue(queue);
        Ok(resolved)
    }

    async fn depth(
        &self,
        queue: &QueueName,
        tenant: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError> {
        let pool = &self.pool;
        pool.run(async { oversee::depth(&mut pool.connection().await?, queue, tenant).await }).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        tenant: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let pool = &self.pool;
        pool.run(async {
            oversee::dead(&mut pool.connection().await?, queue, tenant, after, at_most).await
        })
        .await
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        tenant: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        let pool = &self.pool;
        let was_there = pool
            .run(async { oversee::requeue(&mut pool.connection().await?, queue, tenant, id).await })
            .await?;
        self.wake_queue(queue);
        Ok(was_there)
    }

    async fn discard(
        &self,
        queue: &QueueName,
        tenant: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        let pool = &self.pool;
        let was_there = pool
            .run(async { oversee::discard(&mut pool.connection().await?, queue, tenant, id).await })
            .await?;
        self.wake_queue(queue);
        Ok(was_there)
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
