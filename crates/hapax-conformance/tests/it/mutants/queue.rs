//! Planted bugs of queues.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use hapax_core::queue::{
    DeadLetter, Enqueued, ItemId, ItemOutcome, LeaseRequest, LeasedItem, QueueDepth, QueueItem,
    QueueName, Resolved,
};
use hapax_core::{Fence, Queue, StoreError, Tenant, Token, Watch};

use crate::mutants::{Bug, Mutant};

/// The items that were leased under each token.
pub(crate) type Leases = Mutex<HashMap<Token, Vec<LeasedItem>>>;

const FOR_EVER: Duration = Duration::from_secs(1 << 40);

impl Mutant {
    fn outcome(&self, outcome: &ItemOutcome) -> ItemOutcome {
        match (self.bug, outcome.clone()) {
            (Bug::DeadKeyDoesNotBlock, ItemOutcome::Bury { reason, .. }) => {
                ItemOutcome::Bury { reason, blocks: false }
            }
            (Bug::GivingBackCounts, ItemOutcome::Retry { after, reason, .. }) => {
                ItemOutcome::Retry { after, counts: true, reason }
            }
            (Bug::DoneIsForgotten, ItemOutcome::Ack { .. }) => {
                ItemOutcome::Ack { retention: Duration::ZERO }
            }
            (_, outcome) => outcome,
        }
    }

    /// Enqueues a retried item again, as if it were new.
    async fn to_the_back(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        after: Duration,
    ) -> Result<Resolved, StoreError> {
        let held = self.leases.lock().unwrap().get(token).cloned().unwrap_or_default();
        let resolved = self.store.ack(queue, token, &[id], Duration::ZERO).await?[0];
        let item = held.into_iter().map(|leased| leased.item).find(|item| item.id == id);
        if let (Resolved::Done, Some(item)) = (resolved, item) {
            self.store.enqueue(queue, &[item.delay(after)]).await?;
        }
        Ok(resolved)
    }
}

#[async_trait]
impl Queue for Mutant {
    async fn enqueue(
        &self,
        queue: &QueueName,
        items: &[QueueItem],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let mut items = items.to_vec();
        for item in &mut items {
            match self.bug {
                Bug::DelayIgnored => item.delay = Duration::ZERO,
                Bug::NoKeyIsAKey => item.key = item.key.take().or(Some("".into())),
                _ => {}
            }
        }
        self.store.enqueue(queue, &items).await
    }

    async fn lease(
        &self,
        queue: &QueueName,
        take: &LeaseRequest,
    ) -> Result<Vec<LeasedItem>, StoreError> {
        let mut take = take.clone();
        let before = self.leases.lock().unwrap().get(&take.token).cloned();
        if self.bug == Bug::AskedAgainIsAnother && before.is_some() {
            take.token = Token::random();
        }
        if self.bug == Bug::LapsedLeaseNotReturned {
            take.lease = FOR_EVER;
        }
        let mut leased = self.store.lease(queue, &take).await?;
        let mut leases = self.leases.lock().unwrap();
        if self.bug == Bug::TwoHolders && leased.is_empty() {
            leased = leases.values().flatten().take(1).cloned().collect();
        }
        for one in &mut leased {
            match self.bug {
                Bug::AttemptsNotCounted => one.attempt = 1,
                Bug::ConstantLeaseFence => one.fence = Fence(1),
                Bug::NoKeyIsAKey => one.item.key = one.item.key.take().filter(|k| !k.is_empty()),
                _ => {}
            }
        }
        leases.insert(take.token, leased.clone());
        Ok(leased)
    }

    async fn renew(
        &self,
        queue: &QueueName,
        token: &Token,
        lease: Duration,
    ) -> Result<u64, StoreError> {
        self.store.renew(queue, token, lease).await
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> Result<Vec<Resolved>, StoreError> {
        let mut answers = Vec::new();
        for (id, outcome) in outcomes {
            let outcome = self.outcome(outcome);
            let is_ack = matches!(outcome, ItemOutcome::Ack { .. });
            let answer = match outcome {
                ItemOutcome::Retry { after, .. } if self.bug == Bug::OrderBrokenAfterRetry => {
                    self.to_the_back(queue, token, *id, after).await?
                }
                outcome => self.store.resolve(queue, token, &[(*id, outcome)]).await?[0],
            };
            answers.push(match answer {
                Resolved::Lost if self.bug == Bug::LostAckAccepted && is_ack => Resolved::Done,
                answer => answer,
            });
        }
        Ok(answers)
    }

    async fn depth(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
    ) -> Result<QueueDepth, StoreError> {
        let whose = whose.filter(|_| self.bug != Bug::DepthOfAllTenants);
        self.store.depth(queue, whose).await
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        after: Option<ItemId>,
        at_most: u32,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.store.dead(queue, whose, after, at_most).await
    }

    async fn requeue(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        self.store.requeue(queue, whose, id).await
    }

    async fn discard(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> Result<bool, StoreError> {
        if self.bug == Bug::DiscardedStillBlocks {
            let letters = self.store.dead(queue, whose, None, 1000).await?;
            return Ok(letters.iter().any(|letter| letter.id == id));
        }
        self.store.discard(queue, whose, id).await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        if self.bug == Bug::WakesNoWorker { Watch::never() } else { self.store.arrivals(queue) }
    }
}
