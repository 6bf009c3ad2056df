//! Planted bugs of queues.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use hapax_conformance::StoreWrapper;
use hapax_core::memory::MemoryStore;
use hapax_core::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, Resolved,
};
use hapax_core::{Fence, Queue, Store, StoreResult, Tenant, Token, Watch};

use super::bugs;

const FOR_EVER: Duration = Duration::from_secs(1 << 40);

bugs! {
    /// A retried item is leased after later ones.
    OrderBrokenAfterRetry => "retried_item_comes_before_later_ones",
    /// The items of a lapsed lease are never leased again.
    LapsedLeaseNotReturned => "lapsed_item_is_leased_again_with_a_greater_fence",
    /// Any token may acknowledge.
    LostAckAccepted => "late_resolve_after_another_lease_is_lost",
    /// A dead item does not block its key.
    DeadKeyDoesNotBlock => "later_item_waits_behind_a_dead_one_that_blocks",
    /// Every attempt is the first.
    AttemptsNotCounted => "attempts_count_leases",
    /// An uncounted retry counts as an attempt.
    GivingBackCounts => "uncounted_retry_does_not_count_its_attempt",
    /// A retried item always keeps its key.
    RetryKeepsItsPlace => "retry_without_its_place_lets_later_items_pass",
    /// A repeated lease is a new lease.
    AskedAgainIsAnother => "lease_repeated_with_its_token_returns_the_same_items",
    /// An item in flight is leased to a second worker.
    TwoHolders => "concurrent_workers_share_no_item_and_keep_key_order",
    /// Every lease has the same fence.
    ConstantLeaseFence => "fences_grow_with_every_lease_of_an_item",
    /// A done item is forgotten at once.
    DoneIsForgotten => "id_of_a_done_item_is_a_duplicate_within_its_retention",
    /// Everything is due at once.
    DelayIgnored => "item_is_not_due_before_its_delay_has_passed",
    /// Items without a key are taken for items of one key.
    NoKeyIsAKey => "items_without_a_key_never_wait_for_others",
    /// A discarded item still blocks its key.
    DiscardedStillBlocks => "discarded_item_is_gone_and_unblocks_its_key",
    /// Each tenant gets the depth of all tenants.
    DepthOfAllTenants => "depth_is_counted_by_tenant",
    /// Each tenant may read the dead letters of all tenants.
    DeadItemOfAnyTenant => "dead_item_is_read_with_its_payload",
    /// A queue whose items are all dead is not listed.
    QueuesWithoutDeadOnes => "queues_lists_every_queue_with_items",
    /// The newest items are listed first.
    WaitingNewestFirst => "waiting_lists_the_oldest_items_in_order",
    /// Items in flight are not listed.
    WaitingWithoutInFlight => "waiting_lists_the_oldest_items_in_order",
    /// Dead items are listed as waiting.
    WaitingWithDeadOnes => "waiting_leaves_out_dead_and_done_items",
    /// The attempt in flight is not shown.
    WaitingWithoutThisAttempt => "waiting_shows_attempts_and_the_newest_reason",
    /// Items that wait show no reason.
    WaitingWithoutReasons => "waiting_shows_attempts_and_the_newest_reason",
    /// An item that was ever leased counts as in flight.
    LeasesNeverLapse => "waiting_shows_which_items_are_in_flight",
    /// Each tenant sees the items of all tenants.
    WaitingOfAllTenants => "waiting_is_listed_by_tenant",
    /// Only the newest reason is kept.
    EarlierReasonsForgotten => "dead_item_keeps_the_reasons_of_its_failures",
    /// Reasons are listed with the newest first.
    ReasonsNewestFirst => "dead_item_keeps_the_reasons_of_its_failures",
    /// Nine reasons are kept.
    NineReasonsKept => "dead_item_keeps_the_last_ten_reasons",
    /// Reasons are kept with their line breaks.
    ReasonsWithLineBreaks => "dead_item_keeps_reasons_as_lines",
    /// A requeued item keeps the reasons of its failures.
    RequeueKeepsReasons => "requeued_item_has_no_earlier_reasons",
    /// Each uncounted retry adds its reason.
    UncountedReasonsRepeat => "repeated_reason_of_uncounted_retries_is_kept_once",
    /// The filter on the reason is ignored.
    ReasonFilterIgnored => "dead_items_are_filtered_by_their_newest_reason",
    /// The filter on the reason finds those that once failed for it.
    ReasonFilterFindsEarlier => "dead_items_are_filtered_by_their_newest_reason",
    /// The rarest reasons come first.
    RarestReasonsFirst => "dead_reasons_are_counted_most_frequent_first",
    /// Reasons are counted without their times.
    ReasonsWithoutTimes => "dead_reasons_are_counted_most_frequent_first",
    /// Each tenant sees the reasons of all tenants.
    ReasonsOfAllTenants => "dead_reasons_are_counted_by_tenant",
    /// Wakes no worker.
    WakesNoWorker => "waiter_is_woken_by_an_arrival",
}

pub(crate) struct QueueMutant {
    bug: Bug,
    store: MemoryStore,
    /// The items that were leased under each token.
    leases: Mutex<HashMap<Token, Vec<LeasedItem>>>,
    /// The reasons of items that were requeued.
    requeued: Mutex<HashMap<ItemId, Vec<Arc<str>>>>,
    /// How many uncounted retries there were.
    uncounted: AtomicUsize,
}

impl QueueMutant {
    pub(crate) fn new(bug: Bug, store: MemoryStore) -> Self {
        Self {
            bug,
            store,
            leases: Mutex::default(),
            requeued: Mutex::default(),
            uncounted: AtomicUsize::new(0),
        }
    }

    fn outcome(&self, outcome: &ItemOutcome) -> ItemOutcome {
        match (self.bug, outcome.clone()) {
            (Bug::DeadKeyDoesNotBlock, ItemOutcome::Bury { reason, .. }) => {
                ItemOutcome::Bury { reason, blocks: false }
            }
            (Bug::GivingBackCounts, ItemOutcome::Retry { after, reason, keeps_place, .. }) => {
                ItemOutcome::Retry { after, counts: true, reason, keeps_place }
            }
            (Bug::RetryKeepsItsPlace, ItemOutcome::Retry { after, counts, reason, .. }) => {
                ItemOutcome::Retry { after, counts, reason, keeps_place: true }
            }
            (
                Bug::UncountedReasonsRepeat,
                ItemOutcome::Retry { after, counts: false, reason, keeps_place },
            ) => {
                // Another text each time.
                let times = self.uncounted.fetch_add(1, Ordering::Relaxed);
                let reason = format!("{reason}{}", " ".repeat(times)).into();
                ItemOutcome::Retry { after, counts: false, reason, keeps_place }
            }
            (Bug::DoneIsForgotten, ItemOutcome::Ack { .. }) => {
                ItemOutcome::Ack { retention: Duration::ZERO }
            }
            (_, outcome) => outcome,
        }
    }

    /// Enqueues a retried item again, as if it were new.
    async fn requeue_at_the_end(
        &self,
        queue: &QueueName,
        token: &Token,
        id: ItemId,
        after: Duration,
    ) -> StoreResult<Resolved> {
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
impl StoreWrapper for QueueMutant {
    fn inner(&self) -> &dyn Store {
        &self.store
    }

    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>> {
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

    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>> {
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

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let mut answers = Vec::new();
        for (id, outcome) in outcomes {
            let outcome = self.outcome(outcome);
            let is_ack = matches!(outcome, ItemOutcome::Ack { .. });
            let answer = match outcome {
                ItemOutcome::Retry { after, .. } if self.bug == Bug::OrderBrokenAfterRetry => {
                    self.requeue_at_the_end(queue, token, *id, after).await?
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

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth> {
        let whose = whose.filter(|_| self.bug != Bug::DepthOfAllTenants);
        self.store.depth(queue, whose).await
    }

    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        let whose = whose.filter(|_| self.bug != Bug::WaitingOfAllTenants);
        let mut items = self.store.waiting(queue, whose, at_most).await?;
        match self.bug {
            Bug::WaitingNewestFirst => items.reverse(),
            Bug::WaitingWithoutInFlight => items.retain(|item| !item.in_flight),
            Bug::WaitingWithoutReasons => items.iter_mut().for_each(|item| item.reason = None),
            Bug::LeasesNeverLapse => {
                items.iter_mut().for_each(|item| item.in_flight = item.attempts > 0);
            }
            Bug::WaitingWithoutThisAttempt => {
                items.iter_mut().for_each(|item| item.attempts -= u32::from(item.in_flight));
            }
            Bug::WaitingWithDeadOnes => {
                for letter in self.store.dead(queue, whose, &DeadQuery::new(at_most)).await? {
                    items.push(QueuedItem {
                        id: letter.id,
                        topic: letter.topic,
                        key: letter.key,
                        attempts: letter.attempts,
                        age: Duration::ZERO,
                        in_flight: false,
                        reason: Some(letter.reason),
                    });
                }
            }
            _ => {}
        }
        Ok(items)
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        let mut query = query.clone();
        let reason = match self.bug {
            Bug::ReasonFilterIgnored | Bug::ReasonFilterFindsEarlier => query.reason.take(),
            _ => None,
        };
        let mut letters = self.store.dead(queue, whose, &query).await?;
        for letter in &mut letters {
            match self.bug {
                Bug::EarlierReasonsForgotten => letter.errors = vec![letter.reason.clone()],
                Bug::ReasonsNewestFirst => letter.errors.reverse(),
                Bug::NineReasonsKept if letter.errors.len() > 9 => drop(letter.errors.remove(0)),
                Bug::ReasonsWithLineBreaks => {
                    letter.errors =
                        letter.errors.iter().map(|text| text.replace("  ", "\n").into()).collect();
                }
                Bug::RequeueKeepsReasons => {
                    let earlier = self.requeued.lock().unwrap().get(&letter.id).cloned();
                    letter.errors.splice(..0, earlier.unwrap_or_default());
                }
                _ => {}
            }
        }
        if let (Bug::ReasonFilterFindsEarlier, Some(reason)) = (self.bug, reason) {
            letters.retain(|letter| letter.errors.contains(&reason));
        }
        Ok(letters)
    }

    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        let whose = whose.filter(|_| self.bug != Bug::ReasonsOfAllTenants);
        let mut reasons = self.store.dead_reasons(queue, whose, at_most).await?;
        match self.bug {
            Bug::RarestReasonsFirst => reasons.reverse(),
            Bug::ReasonsWithoutTimes => {
                reasons.iter_mut().for_each(|reason| reason.first_at = reason.last_at);
            }
            _ => {}
        }
        Ok(reasons)
    }

    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>> {
        let whose = whose.filter(|_| self.bug != Bug::DeadItemOfAnyTenant);
        self.store.dead_item(queue, whose, id).await
    }

    async fn queues(&self) -> StoreResult<Vec<QueueName>> {
        let mut names = Vec::new();
        for name in self.store.queues().await? {
            let depth = self.store.depth(&name, None).await?;
            if self.bug != Bug::QueuesWithoutDeadOnes || depth.waiting + depth.in_flight > 0 {
                names.push(name);
            }
        }
        Ok(names)
    }

    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool> {
        if self.bug == Bug::DiscardedStillBlocks && action == DeadLetterAction::Discard {
            let letters = self.store.dead(queue, whose, &DeadQuery::new(1000)).await?;
            return Ok(letters.iter().any(|letter| letter.id == id));
        }
        if action == DeadLetterAction::Requeue {
            let letters = self.store.dead(queue, whose, &DeadQuery::new(1000)).await?;
            let mut requeued = self.requeued.lock().unwrap();
            for letter in letters.into_iter().filter(|letter| letter.id == id) {
                requeued.insert(id, letter.errors);
            }
        }
        self.store.resolve_dead(queue, whose, id, action).await
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        if self.bug == Bug::WakesNoWorker { Watch::never() } else { self.store.arrivals(queue) }
    }
}
