//! Leases events from the queue and handles them side by side.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hapax_core::lock::OnStoreError;
use hapax_core::queue::{ItemOutcome, LeasedItem};
use hapax_core::worker::{LeasedBatch, OutcomeSender, OutcomeWriter, QueueLeaser, TargetHealth};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::Instrument;

use super::admission::Admission;
use super::execution::{Execution, hand_back};
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
    async fn lease_from(
        self: &Arc<Self>,
        leasers: &mut [QueueLeaser],
        max_events: usize,
    ) -> usize {
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
        let groups = self.group_by_lock(rows, &outcomes);
        let this = self.clone();
        let work = async move {
            let mut running = JoinSet::new();
            for events in groups {
                running.spawn(this.clone().handle_group(events, outcomes.clone(), store_took));
            }
            drop(outcomes);
            while running.join_next().await.is_some() {}
        };
        // No retries: an outcome that is not written costs one more lease of an event that is known to
        // be handled, while a retry would hold its slot for as long as the store is down.
        tokio::spawn(writer.without_retries().run_while_renewing(work));
    }

    /// The events of a batch, those that ask for the same lock together. Unreadable rows are buried.
    fn group_by_lock(&self, rows: Vec<LeasedItem>, outcomes: &Outcomes) -> Vec<Vec<LeasedEvent>> {
        let mut groups: HashMap<String, Vec<LeasedEvent>> = HashMap::new();
        for row in rows {
            self.shared.local.forget_stored(row.item.id);
            let Some(event) = ReceivedEvent::from_row(&row, &self.shared.config) else {
                tracing::error!(id = %row.item.id, "a row of the queue is no event of LINE's");
                let reason = "it is no webhook of LINE's".into();
                outcomes.send(row.item.id, ItemOutcome::Bury { reason, blocks: false }, None);
                continue;
            };
            let slot = self.shared.slots.try_acquire(1);
            let group = groups.entry(self.lock_group(&event)).or_default();
            group.push(LeasedEvent { event, row, slot });
        }
        groups.into_values().collect()
    }

    fn lock_group(&self, event: &ReceivedEvent) -> String {
        let is_locked = self.shared.config.rules.rule_for(&event.event) != LockRule::None;
        let user = event.event.user_id().filter(|_| is_locked);
        user.map_or_else(|| event.id.to_string(), Into::into)
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
            let work =
                self.clone().handle_event(leased, outcomes.clone(), store_took, deciding, start);
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
    /// execution.
    async fn handle_event(
        self: Arc<Self>,
        leased: LeasedEvent,
        outcomes: Outcomes,
        store_took: Duration,
        deciding: oneshot::Sender<()>,
        start: Option<oneshot::Receiver<()>>,
    ) {
        let LeasedEvent { event, row, slot } = leased;
        // A lease that is asked for again may bring more events than there are slots by then.
        let slot = if slot.is_some() { slot } else { self.shared.slots.acquire().await };
        if slot.is_none() {
            // The gateway stops: another one leases the event later.
            return;
        }
        if let Some(reason) = self.shared.breaker.reason_not_to_send() {
            return outcomes.send(event.id, hand_back(Duration::ZERO, &reason), slot);
        }
        let store_timeout =
            SharedTimeout::new(self.shared.config.store_timeout.saturating_sub(store_took));
        let store_timeout = Arc::new(store_timeout);
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
        outcomes.send(event.id, outcome, slot);
    }
}
