//! Leases events from the queue and handles them side by side.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::lock::{LockGuard, OnStoreError};
use hapax_core::queue::{ItemId, ItemOutcome, LeasedItem};
use hapax_core::worker::{LeasedBatch, OutcomeSender, OutcomeWriter, QueueLeaser, TargetHealth};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use super::admission::{Admission, LOCK_WAIT, SourceLock};
use super::execution::{Execution, hand_back};
use super::local_state::SourceTurn;
use super::unprotected::UnprotectedExecution;
use super::{GatewayShared, HandlingSlot, ReceivedEvent, SharedTimeout};
use crate::LockRule;

/// The most events of one lease.
const MAX_BATCH: usize = 64;

/// Handles stored events.
pub(super) struct EventWorker {
    pub(super) admission: Arc<Admission>,
    pub(super) execution: Arc<Execution>,
    pub(super) unprotected: Arc<UnprotectedExecution>,
    pub(super) shared: Arc<GatewayShared>,
}

/// Events that are handled together: in order, or admitted in order.
#[derive(PartialEq, Eq, Hash)]
enum EventGroup {
    /// Unlocked events of a source.
    Source(String),
    /// Events that ask for this user's lock.
    User(String),
    /// An event without user and source.
    Alone(ItemId),
}

/// A leased event, and its slot if one was free.
struct LeasedEvent {
    event: ReceivedEvent,
    row: LeasedItem,
    slot: Option<HandlingSlot>,
}

/// The slot of an event is held until its outcome is written.
type Outcomes = OutcomeSender<Option<HandlingSlot>>;

impl EventWorker {
    pub(super) async fn run(self: &Arc<Self>, mut stop: Pin<&mut impl Future<Output = ()>>) {
        let mut leasers = self.shared.leasers();
        // Registered before the first lease, so that no event between the two is missed. Only the last
        // queue gets new events.
        let Some(mut arrivals) = leasers.last().map(QueueLeaser::arrivals) else { return };
        let mut health = self.shared.breaker.health();
        loop {
            let free = tokio::select! {
                biased;
                () = &mut stop => return,
                free = self.shared.slots.wait_for_free() => free,
            };
            let Some(free) = free else { return };
            let is_bot_down = *health.borrow_and_update() != TargetHealth::Up;
            if is_bot_down {
                tokio::select! {
                    biased;
                    () = &mut stop => return,
                    _ = health.wait_for(|health| *health == TargetHealth::Up) => continue,
                    () = sleep(self.shared.breaker.pause()) => self.shared.breaker.check_passed(),
                }
            }
            // While the bot is down one event tries after each pause, without waiting for the one before
            // it: an event that hangs must not keep the others from finding out that the bot is back.
            let max_events = if is_bot_down { 1 } else { free.min(MAX_BATCH) };
            let leased = self.lease_from(&mut leasers, max_events).await;
            if leased == max_events {
                continue;
            }
            let is_store_down = leasers.iter().any(QueueLeaser::is_unanswered);
            if leased == 0 && !is_store_down {
                self.shared.breaker.found_nothing(self.shared.config.store_timeout);
            }
            tokio::select! {
                biased;
                () = &mut stop => return,
                () = self.shared.stored.notified() => {}
                () = arrivals.changed(self.shared.config.poll_interval), if !is_store_down => {}
                () = sleep(self.shared.config.poll_interval), if is_store_down => {}
            }
        }
    }

    /// Leases up to so many events from one queue after the other and starts them; how many there were.
    async fn lease_from(self: &Arc<Self>, leasers: &mut [QueueLeaser], max_events: usize) -> usize {
        let mut leased = 0;
        for leaser in leasers {
            let asked_at = Instant::now();
            if leased >= max_events {
                break;
            }
            match leaser.lease(max_events - leased).await {
                Ok(batch) => {
                    // A lease that is asked for again may bring more events.
                    leased = (leased + batch.rows.len()).min(max_events);
                    self.start_batch(batch);
                }
                Err(_) => self.handle_stored_from_memory(asked_at.elapsed()),
            }
        }
        leased
    }

    /// Handles the events that this process has just stored, when the store goes down before they could
    /// be leased.
    fn handle_stored_from_memory(&self, store_took: Duration) {
        if self.shared.config.on_store_error == OnStoreError::Closed {
            return;
        }
        for event in self.shared.local.take_unleased() {
            let Some(slot) = self.shared.slots.try_acquire(1) else { return };
            self.unprotected.start(event, Some(slot), store_took);
        }
    }

    /// Handles a batch in a task of its own, which renews the lease and writes the outcomes.
    fn start_batch(self: &Arc<Self>, batch: LeasedBatch) {
        let LeasedBatch { rows, lease, .. } = batch;
        if rows.is_empty() {
            return;
        }
        let store_took = lease.elapsed();
        let (outcomes, writer) = OutcomeWriter::new(&lease, rows.len());
        let groups = self.group_events(rows, &outcomes);
        let has_order = groups.keys().any(|group| matches!(group, EventGroup::Source(_)));
        let this = self.clone();
        let work = async move {
            let mut running = JoinSet::new();
            for (group, events) in groups {
                let (this, outcomes) = (this.clone(), outcomes.clone());
                match group {
                    EventGroup::Source(source) => {
                        let turn = this.shared.local.enter_source(&source);
                        running.spawn(
                            this.handle_in_order(source, turn, events, outcomes, store_took),
                        );
                    }
                    _ => drop(running.spawn(this.handle_group(events, outcomes, store_took))),
                }
            }
            drop(outcomes);
            while running.join_next().await.is_some() {}
        };
        // Without an order no retries: an outcome that is not written costs one more lease of an event
        // that is known to be handled, while a retry would hold its slot for as long as the store is down.
        // With an order it would hold up its source.
        let writer = if has_order { writer } else { writer.without_retries() };
        tokio::spawn(writer.run_while_renewing(work));
    }

    /// The events of a batch, those that ask for the same lock or come from the same source together.
    /// Unreadable rows are buried.
    fn group_events(
        &self,
        rows: Vec<LeasedItem>,
        outcomes: &Outcomes,
    ) -> HashMap<EventGroup, Vec<LeasedEvent>> {
        let mut groups: HashMap<EventGroup, Vec<LeasedEvent>> = HashMap::new();
        for row in rows {
            self.shared.local.forget_stored(row.item.id);
            let Some(event) = ReceivedEvent::from_row(&row, &self.shared.config) else {
                tracing::error!(id = %row.item.id, "a row of the queue is no event of LINE's");
                let reason = "it is no webhook of LINE's".into();
                outcomes.send(row.item.id, ItemOutcome::Bury { reason, blocks: false }, None);
                continue;
            };
            let group = self.group_of(&event);
            // Events in order get their slot when it is their turn: those that wait must not use up the
            // slots of others.
            let slot = match group {
                EventGroup::Source(_) => None,
                EventGroup::User(_) | EventGroup::Alone(_) => self.shared.slots.try_acquire(1),
            };
            groups.entry(group).or_default().push(LeasedEvent { event, row, slot });
        }
        groups
    }

    fn group_of(&self, event: &ReceivedEvent) -> EventGroup {
        // By the event and not by the row's key: a row that was retried has none.
        if let Some(source) = event.source_key(&self.shared.config) {
            return EventGroup::Source(source);
        }
        let is_locked = self.shared.config.rules.rule_for(&event.event) != LockRule::None;
        match event.event.user_id().filter(|_| is_locked) {
            Some(user) => EventGroup::User(user.to_owned()),
            None => EventGroup::Alone(event.id),
        }
    }

    /// Handles unlocked events of one source, one after the other. One that failed lets those behind it
    /// pass; one that was handed back with its place does not.
    async fn handle_in_order(
        self: Arc<Self>,
        source: String,
        mut turn: SourceTurn,
        events: Vec<LeasedEvent>,
        outcomes: Outcomes,
        store_took: Duration,
    ) {
        let is_our_turn = timeout(LOCK_WAIT, turn.wait()).await.is_ok();
        let store_timeout = self.store_timeout(store_took);
        let lock = match is_our_turn {
            true => self.admission.lock_source(&source, events.len(), &store_timeout).await,
            false => SourceLock::Busy,
        };
        let mut events = events.into_iter();
        if let SourceLock::Entered(guard) = lock {
            let mut store_took =
                self.shared.config.store_timeout.saturating_sub(store_timeout.time_left());
            for leased in events.by_ref() {
                let span = leased.event.span();
                let outcomes = outcomes.clone();
                let handled = self.clone().handle_event(leased, outcomes, store_took, None, None);
                if !handled.instrument(span).await || self.shared.is_stopping() {
                    break;
                }
                store_took = Duration::ZERO;
            }
            if let Some(guard) = guard.filter(LockGuard::is_protected) {
                // Best effort: the lock expires by itself.
                let _ = timeout(self.shared.config.store_timeout, guard.release()).await;
            }
        }
        for LeasedEvent { row, slot, .. } in events {
            let outcome = hand_back(Duration::ZERO, "an earlier event of its source waits");
            outcomes.send(row.item.id, outcome, slot);
        }
    }

    fn store_timeout(&self, store_took: Duration) -> SharedTimeout {
        SharedTimeout::new(self.shared.config.store_timeout.saturating_sub(store_took))
    }

    /// Handles events that ask for the same lock. The first is admitted before the others, so that it is
    /// the one to get the lock, and executed only after the others were decided on: a fast bot would
    /// otherwise have released the lock before they ask for it.
    async fn handle_group(
        self: Arc<Self>,
        events: Vec<LeasedEvent>,
        outcomes: Outcomes,
        store_took: Duration,
    ) {
        let (mut running, mut others) = (JoinSet::new(), Vec::new());
        let (all_decided, start) = oneshot::channel();
        let mut start = Some(start);
        for leased in events {
            let (span, has_slot) = (leased.event.span(), leased.slot.is_some());
            let (deciding, decided) = oneshot::channel();
            let start = start.take();
            let is_first = start.is_some();
            let outcomes = outcomes.clone();
            let work =
                self.clone().handle_event(leased, outcomes, store_took, Some(deciding), start);
            running.spawn(work.instrument(span));
            if is_first {
                let _ = decided.await;
            } else if has_slot {
                others.push(decided);
            }
        }
        for decided in others {
            let _ = decided.await;
        }
        let _ = all_decided.send(());
        while running.join_next().await.is_some() {}
    }

    /// Admits and executes one event. `deciding` is dropped after the admission; `start` delays the
    /// execution. Returns whether those behind the event may pass.
    async fn handle_event(
        self: Arc<Self>,
        leased: LeasedEvent,
        outcomes: Outcomes,
        store_took: Duration,
        deciding: Option<oneshot::Sender<()>>,
        start: Option<oneshot::Receiver<()>>,
    ) -> bool {
        let LeasedEvent { event, row, slot } = leased;
        // A lease that is asked for again may bring more events than there are slots by then.
        let slot = if slot.is_some() { slot } else { self.shared.slots.acquire().await };
        if slot.is_none() {
            let outcome = hand_back(Duration::ZERO, "the gateway stops");
            outcomes.send(event.id, outcome, None);
            return false;
        }
        if let Some(reason) = self.shared.breaker.reason_not_to_send() {
            outcomes.send(event.id, hand_back(Duration::ZERO, &reason), slot);
            return false;
        }
        let store_timeout = Arc::new(self.store_timeout(store_took));
        let (in_hand, decision) = match self.shared.local.begin_leased(event.id) {
            Ok(in_hand) => {
                (Some(in_hand), self.admission.admit(&event, &row, &store_timeout).await)
            }
            Err(progress) => (None, progress.into()),
        };
        drop(deciding);
        if let Some(start) = start {
            let _ = start.await;
        }
        let outcome = self.execution.execute(&event, &row, decision, store_timeout).await;
        // Before the outcome is written: a dead letter that an operator requeues right after it must not
        // be found in hand.
        drop(in_hand);
        let lets_pass = !matches!(outcome, ItemOutcome::Retry { keeps_place: true, .. });
        outcomes.send(event.id, outcome, slot);
        lets_pass
    }
}
