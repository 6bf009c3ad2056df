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
use crate::tx::lock::Patience;
use enqueue::{Sent, bell};

#[async_trait]
impl Queue for PostgresStore {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        self.enqueues.submit(Sent { queue: queue.clone(), items: items.to_vec() }).await
    }

    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        let link = &self.link;
        let mut patience = Patience::new(link.limit);
        link.within(async {
            loop {
                let mut lease = link.lease().await?;
                let leased = lease::lease(&mut lease, queue, take).await?;
                drop(lease);
                match leased {
                    Some(leased) => return Ok(leased),
                    // Other nodes are at it, and it is no error to come too late.
                    None if patience.wait().await.is_err() => return Ok(Vec::new()),
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
        let link = &self.link;
        link.within(async { resolve::renew(&mut link.lease().await?, queue, token, lease).await })
            .await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        let link = &self.link;
        let resolved = link
            .within(async {
                resolve::resolve(&mut link.lease().await?, queue, token, outcomes).await
            })
            .await?;
        // What waited behind these may be due.
        self.arrived(queue);
        Ok(resolved)
    }

    async fn depth(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError> {
        let link = &self.link;
        link.within(async { oversee::depth(&mut link.lease().await?, queue, whose).await }).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        let link = &self.link;
        link.within(async {
            oversee::dead(&mut link.lease().await?, queue, whose, after, at_most).await
        })
        .await
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        let link = &self.link;
        let was_there = link
            .within(async { oversee::requeue(&mut link.lease().await?, queue, whose, id).await })
            .await?;
        self.arrived(queue);
        Ok(was_there)
    }

    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        let link = &self.link;
        let was_there = link
            .within(async { oversee::discard(&mut link.lease().await?, queue, whose, id).await })
            .await?;
        self.arrived(queue);
        Ok(was_there)
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        bell(queue).map_or_else(Watch::never, |bell| self.wakes.watch(&bell))
    }
}

impl PostgresStore {
    /// Tells those who wait for work, here and on other nodes, that a queue has some. The store does
    /// so for what it enqueues itself; call it after the commit of a transaction that enqueued
    /// something. Where it is not called, they find out when they next look.
    pub fn arrived(&self, queue: &QueueName) {
        bell(queue).iter().for_each(|bell| self.wakes.wake(bell));
    }
}
