use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;

use super::{MemoryStore, Tables};
use crate::queue::{
    DeadLetter, DeadLetterAction, DeadQuery, DeadReason, Enqueued, ItemId, ItemOutcome,
    LeaseRequest, LeasedItem, QueueDepth, QueueItem, QueueName, QueuedItem, ReasonCounts, Resolved,
    reasons,
};
use crate::{Fence, Queue, StoreResult, Tenant, Timestamp, Token, Watch};

/// One queue. Its rows are sorted by place, which is the order of enqueueing.
#[derive(Clone, Debug, Default)]
pub(super) struct Items {
    rows: BTreeMap<u64, Row>,
    places: HashMap<ItemId, u64>,
    /// The places of the items that each token holds, including those whose lease has lapsed.
    held: HashMap<Token, BTreeSet<u64>>,
    pub(super) done: HashMap<ItemId, Done>,
}

#[derive(Clone, Debug)]
struct Row {
    item: QueueItem,
    enqueued_at: Timestamp,
    due_at: Timestamp,
    attempts: u32,
    /// The reasons of its failures, as `queue::reasons` writes them.
    reasons: Option<String>,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Waiting,
    InFlight { token: Token, fence: Fence, until: Timestamp },
    Dead { blocks: bool, at: Timestamp },
}

/// An acknowledged item, remembered so that duplicates and repeated acks are recognised.
#[derive(Clone, Debug)]
pub(super) struct Done {
    token: Token,
    pub(super) until: Timestamp,
}

impl Row {
    fn new(item: &QueueItem, now: Timestamp) -> Self {
        Self {
            item: QueueItem { delay: Duration::ZERO, ..item.clone() },
            enqueued_at: now,
            due_at: now.plus(item.delay),
            attempts: 0,
            reasons: None,
            phase: Phase::Waiting,
        }
    }

    fn is_held_by(&self, asker: &Token) -> bool {
        matches!(&self.phase, Phase::InFlight { token, .. } if token == asker)
    }

    fn is_in_flight(&self, now: Timestamp) -> bool {
        matches!(self.phase, Phase::InFlight { until, .. } if now < until)
    }

    fn is_dead(&self) -> bool {
        matches!(self.phase, Phase::Dead { .. })
    }

    fn is_of(&self, whose: Option<&Tenant>) -> bool {
        whose.is_none_or(|tenant| self.item.tenant == *tenant)
    }

    /// Whether the item may be leased, apart from the order of its key. A lapsed lease counts as
    /// none.
    fn is_due(&self, now: Timestamp) -> bool {
        match self.phase {
            Phase::Waiting => self.due_at <= now,
            Phase::InFlight { until, .. } => until <= now,
            Phase::Dead { .. } => false,
        }
    }

    /// Whether later items of the same key wait for this one.
    fn blocks(&self) -> bool {
        !matches!(self.phase, Phase::Dead { blocks: false, .. })
    }

    fn leased(&self, fence: Fence, now: Timestamp) -> LeasedItem {
        let age = now.since(self.enqueued_at);
        LeasedItem { item: self.item.clone(), attempt: self.attempts, fence, age }
    }

    fn queued(&self, now: Timestamp) -> QueuedItem {
        QueuedItem {
            id: self.item.id,
            topic: self.item.topic.clone(),
            key: self.item.key.clone(),
            attempts: self.attempts,
            age: now.since(self.enqueued_at),
            in_flight: self.is_in_flight(now),
            reason: self.reasons.as_deref().map(|stored| reasons::newest(stored).into()),
        }
    }

    fn letter(&self) -> Option<DeadLetter> {
        let Phase::Dead { at, .. } = self.phase else { return None };
        let stored = self.reasons.as_deref().unwrap_or_default();
        Some(DeadLetter {
            id: self.item.id,
            topic: self.item.topic.clone(),
            key: self.item.key.clone(),
            attempts: self.attempts,
            reason: reasons::newest(stored).into(),
            errors: reasons::oldest_first(stored),
            at,
        })
    }
}

impl Items {
    fn enqueue(&mut self, item: &QueueItem, place: u64, now: Timestamp) -> Enqueued {
        let remembered = self.done.get(&item.id).is_some_and(|done| now < done.until);
        if remembered || self.places.contains_key(&item.id) {
            return Enqueued::Duplicate;
        }
        self.done.remove(&item.id);
        self.places.insert(item.id, place);
        self.rows.insert(place, Row::new(item, now));
        Enqueued::Accepted
    }

    /// The answer to a repeated lease call: the items that its token holds by a lease that has not
    /// lapsed. Their lease starts again.
    fn again(&mut self, take: &LeaseRequest, now: Timestamp) -> Vec<LeasedItem> {
        let mut again = Vec::new();
        for place in self.held.get(&take.token).into_iter().flatten() {
            if let Some(row) = self.rows.get_mut(place)
                && let Phase::InFlight { fence, until, .. } = &mut row.phase
                && now < *until
            {
                *until = now.plus(take.lease);
                let fence = *fence;
                again.push(row.leased(fence, now));
            }
        }
        again
    }

    fn renew(&mut self, token: &Token, end: Timestamp) -> u64 {
        let mut renewed = 0;
        for place in self.held.get(token).into_iter().flatten() {
            if let Some(row) = self.rows.get_mut(place)
                && let Phase::InFlight { until, .. } = &mut row.phase
            {
                *until = end;
                renewed += 1;
            }
        }
        renewed
    }

    /// The places of the items that can be leased, oldest first. An item that is passed over holds
    /// back later items of its key, unless it is dead and does not block.
    fn due(&self, at_most: usize, now: Timestamp) -> Vec<u64> {
        let mut due = Vec::new();
        let mut held_back = HashSet::new();
        for (place, row) in &self.rows {
            if due.len() >= at_most {
                break;
            }
            let key = row.item.key.as_ref().map(|key| (&row.item.tenant, key));
            if row.is_due(now) && key.is_none_or(|key| !held_back.contains(&key)) {
                due.push(*place);
            } else if row.blocks() {
                held_back.extend(key);
            }
        }
        due
    }

    fn hand_out(
        &mut self,
        place: u64,
        fence: Fence,
        take: &LeaseRequest,
        now: Timestamp,
    ) -> Option<LeasedItem> {
        let row = self.rows.get_mut(&place)?;
        row.attempts += 1;
        let lease =
            Phase::InFlight { token: take.token.clone(), fence, until: now.plus(take.lease) };
        let before = std::mem::replace(&mut row.phase, lease);
        let leased = row.leased(fence, now);
        if let Phase::InFlight { token: lapsed, .. } = before {
            self.let_go(&lapsed, place);
        }
        self.held.entry(take.token.clone()).or_default().insert(place);
        Some(leased)
    }

    fn let_go(&mut self, token: &Token, place: u64) {
        let Some(places) = self.held.get_mut(token) else { return };
        places.remove(&place);
        if places.is_empty() {
            self.held.remove(token);
        }
    }

    fn resolve(
        &mut self,
        id: ItemId,
        asker: &Token,
        how: &ItemOutcome,
        now: Timestamp,
    ) -> Resolved {
        let acked = self.done.get(&id).filter(|done| now < done.until && done.token == *asker);
        if acked.is_some() && matches!(how, ItemOutcome::Ack { .. }) {
            return Resolved::Done;
        }
        let Some(place) = self.places.get(&id).copied() else { return Resolved::Lost };
        let Some(row) = self.rows.get_mut(&place).filter(|row| row.is_held_by(asker)) else {
            return Resolved::Lost;
        };
        match how {
            ItemOutcome::Ack { retention } => {
                self.remove(id);
                self.done.insert(id, Done { token: asker.clone(), until: now.plus(*retention) });
            }
            ItemOutcome::Retry { after, counts, reason, keeps_place } => {
                if !keeps_place {
                    row.item.key = None;
                }
                row.reasons = reasons::add(row.reasons.as_deref(), reason, *counts);
                row.attempts -= u32::from(!counts);
                row.due_at = now.plus(*after);
                row.phase = Phase::Waiting;
            }
            ItemOutcome::Bury { reason, blocks } => {
                row.reasons = reasons::add(row.reasons.as_deref(), reason, true);
                row.phase = Phase::Dead { blocks: *blocks, at: now };
            }
        }
        self.let_go(asker, place);
        Resolved::Done
    }

    fn depth(&self, whose: Option<&Tenant>, now: Timestamp) -> QueueDepth {
        let mut depth = QueueDepth::default();
        for row in self.rows.values().filter(|row| row.is_of(whose)) {
            if row.is_dead() {
                depth.dead += 1;
                continue;
            }
            let in_flight = row.is_in_flight(now);
            depth.in_flight += u64::from(in_flight);
            depth.waiting += u64::from(!in_flight);
            depth.oldest_age = depth.oldest_age.max(Some(now.since(row.enqueued_at)));
        }
        depth
    }

    fn waiting(&self, whose: Option<&Tenant>, at_most: u32, now: Timestamp) -> Vec<QueuedItem> {
        let rows = self.rows.values().filter(|row| row.is_of(whose) && !row.is_dead());
        rows.take(at_most as usize).map(|row| row.queued(now)).collect()
    }

    fn dead(&self, whose: Option<&Tenant>, query: &DeadQuery) -> Vec<DeadLetter> {
        let is_asked_for = |letter: &DeadLetter| {
            Some(letter.id) > query.after
                && query.reason.as_ref().is_none_or(|reason| *reason == letter.reason)
        };
        let rows = self.rows.values().filter(|row| row.is_of(whose));
        let mut dead: Vec<_> = rows.filter_map(Row::letter).filter(is_asked_for).collect();
        dead.sort_by_key(|letter| letter.id);
        dead.truncate(query.at_most as usize);
        dead
    }

    fn dead_reasons(&self, whose: Option<&Tenant>, at_most: u32) -> Vec<DeadReason> {
        let mut counts = ReasonCounts::default();
        for letter in self.rows.values().filter(|row| row.is_of(whose)).filter_map(Row::letter) {
            counts.add(&letter.reason, 1, [letter.at; 2]);
        }
        counts.most_frequent(at_most)
    }

    fn row(&mut self, id: ItemId) -> Option<&mut Row> {
        self.places.get(&id).and_then(|place| self.rows.get_mut(place))
    }

    fn letter(&mut self, id: ItemId, whose: Option<&Tenant>) -> Option<&mut Row> {
        self.row(id).filter(|row| row.is_dead() && row.is_of(whose))
    }

    fn remove(&mut self, id: ItemId) {
        self.places.remove(&id).and_then(|place| self.rows.remove(&place));
    }
}

impl Tables {
    fn items(&mut self, queue: &QueueName) -> &mut Items {
        self.queues.entry(queue.clone()).or_default()
    }
}

impl MemoryStore {
    fn wake_queue(&self, queue: &QueueName) {
        queue.arrivals_key().map(|key| self.wakes.wake(key.digest()));
    }
}

#[async_trait]
impl Queue for MemoryStore {
    async fn enqueue(&self, queue: &QueueName, items: &[QueueItem]) -> StoreResult<Vec<Enqueued>> {
        let answers = {
            let mut tables = self.tables();
            let now = self.clock.now();
            let first = self.sequence.next_of(items.len());
            let rows = tables.items(queue);
            items.iter().zip(first..).map(|(item, place)| rows.enqueue(item, place, now)).collect()
        };
        self.wake_queue(queue);
        Ok(answers)
    }

    async fn lease(&self, queue: &QueueName, take: &LeaseRequest) -> StoreResult<Vec<LeasedItem>> {
        let mut tables = self.tables();
        let now = self.clock.now();
        let again = tables.items(queue).again(take, now);
        if !again.is_empty() {
            return Ok(again);
        }
        let due = tables.items(queue).due(take.max_items, now);
        let first = self.sequence.next_of(due.len());
        let rows = tables.items(queue);
        let hand_out = |(place, fence)| rows.hand_out(place, Fence(fence), take, now);
        Ok(due.into_iter().zip(first..).filter_map(hand_out).collect())
    }

    async fn renew(&self, queue: &QueueName, token: &Token, lease: Duration) -> StoreResult<u64> {
        let mut tables = self.tables();
        let end = self.clock.now().plus(lease);
        Ok(tables.items(queue).renew(token, end))
    }

    async fn resolve(
        &self,
        queue: &QueueName,
        token: &Token,
        outcomes: &[(ItemId, ItemOutcome)],
    ) -> StoreResult<Vec<Resolved>> {
        let answers = {
            let mut tables = self.tables();
            let now = self.clock.now();
            let items = tables.items(queue);
            outcomes.iter().map(|(id, how)| items.resolve(*id, token, how, now)).collect()
        };
        self.wake_queue(queue);
        Ok(answers)
    }

    async fn depth(&self, queue: &QueueName, whose: Option<&Tenant>) -> StoreResult<QueueDepth> {
        let now = self.clock.now();
        Ok(self.tables().items(queue).depth(whose, now))
    }

    async fn waiting(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<QueuedItem>> {
        let now = self.clock.now();
        Ok(self.tables().items(queue).waiting(whose, at_most, now))
    }

    async fn dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        query: &DeadQuery,
    ) -> StoreResult<Vec<DeadLetter>> {
        Ok(self.tables().items(queue).dead(whose, query))
    }

    async fn dead_reasons(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        at_most: u32,
    ) -> StoreResult<Vec<DeadReason>> {
        Ok(self.tables().items(queue).dead_reasons(whose, at_most))
    }

    async fn dead_item(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
    ) -> StoreResult<Option<QueueItem>> {
        Ok(self.tables().items(queue).letter(id, whose).map(|row| row.item.clone()))
    }

    async fn queues(&self) -> StoreResult<Vec<QueueName>> {
        let tables = self.tables();
        let used = tables.queues.iter().filter(|(_, items)| !items.rows.is_empty());
        let mut names: Vec<_> = used.map(|(name, _)| name.clone()).collect();
        names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
        Ok(names)
    }

    async fn resolve_dead(
        &self,
        queue: &QueueName,
        whose: Option<&Tenant>,
        id: ItemId,
        action: DeadLetterAction,
    ) -> StoreResult<bool> {
        let now = self.clock.now();
        let found = {
            let mut tables = self.tables();
            let items = tables.items(queue);
            let letter = items.letter(id, whose);
            let found = letter.is_some();
            match (letter, action) {
                (Some(row), DeadLetterAction::Requeue) => {
                    (row.phase, row.attempts, row.due_at) = (Phase::Waiting, 0, now);
                    row.reasons = None;
                }
                (Some(_), DeadLetterAction::Discard) => items.remove(id),
                (None, _) => {}
            }
            found
        };
        self.wake_queue(queue);
        Ok(found)
    }

    fn arrivals(&self, queue: &QueueName) -> Watch {
        queue.arrivals_key().map_or_else(Watch::never, |key| self.wakes.watch(&key))
    }
}
