//! Does with an event what was decided, and says what becomes of it in the queue.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hapax_core::command::RunningCommand;
use hapax_core::lock::{LockConfig, LockError, LockGuard};
use hapax_core::queue::{ItemId, ItemOutcome, LeasedItem};
use hapax_core::{OnUnknown, Token, metric_names, trace, with_timeout};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Instrument;

use super::admit::{Admission, Pass, which_attempt};
use super::unprotected::handled;
use super::{Arrived, Budget, Inner, count_handled};
use crate::handler::Then;
use crate::{Failed, Message, Turn};

/// How long an event that was begun before waits for its user's lock before it goes back: longer than
/// a lock that nobody renews.
const WAIT_FOR_LOCK: Duration = Duration::from_secs(10);

impl Inner {
    pub(super) async fn carry_out(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        admission: Admission,
        budget: Arc<Budget>,
    ) -> ItemOutcome {
        match admission {
            Admission::Go(pass) => self.go(event, leased, pass, budget).await,
            Admission::Wait(running, key, hold) => {
                self.wait(event, leased, running, &key, hold, budget).await
            }
            Admission::Busy(running) => self.tell_to_wait(event, running, budget).await,
            Admission::Duplicate => {
                count_handled(event.kind(), "duplicate");
                self.ack()
            }
            Admission::Later(after) => later(after, false),
            // Somebody is: that is the first attempt, also where it began without a lease.
            Admission::InOtherHands(after) => later(after, leased.attempt == 1),
            Admission::Dead(reason) => self.bury(event, reason),
        }
    }

    /// Handles the event.
    async fn go(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        pass: Pass,
        budget: Arc<Budget>,
    ) -> ItemOutcome {
        let attempt = which_attempt(leased, pass.running.as_ref());
        let turn = Turn { fence: pass.fence(), ..self.turn(event, attempt, budget) };
        let Pass { running, guard } = pass;
        // Where the store failed there is a guard without a lock.
        let guard = guard.filter(LockGuard::is_protected);
        if guard.is_some() {
            tracing::info!(event_type = %event.kind(), "acquired");
        }
        let result = self.handle(event, turn).await;
        if let Some(guard) = guard {
            // Best effort: it runs out by itself.
            let released = timeout(self.settings.store_budget, guard.release()).await;
            let released = if matches!(released, Ok(Ok(()))) { "released" } else { "not released" };
            tracing::info!(event_type = %event.kind(), "{released}");
        }
        match result {
            Ok(()) => {
                count_handled(event.kind(), "done");
                self.completed(event, running).await;
                self.ack()
            }
            Err(failed) => self.failed(event, leased, running, failed).await,
        }
    }

    /// Runs the handler within its time limit.
    pub(super) async fn handle(&self, event: &Arrived, turn: Turn) -> Result<(), Failed> {
        let (handler, trace) = (self.handler.clone(), event.trace.clone());
        let event = event.event.clone();
        // A task of its own, so that a panic is an outcome too; it ends with the set.
        let mut task = JoinSet::new();
        let work = trace::within(trace, async move { handler.handle(&event, &turn).await });
        task.spawn(work.in_current_span());
        match timeout(self.settings.handle_limit, task.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(_) => Err(Failed::unknown("the handler panicked")),
            Err(_) => Err(Failed::unknown("handling the event took too long")),
        }
    }

    pub(super) fn turn(&self, event: &Arrived, attempt: u32, budget: Arc<Budget>) -> Turn {
        Turn {
            id: event.id,
            attempt,
            tried_elsewhere: attempt > 1,
            fence: None,
            correlation: event.correlation.clone(),
            client: self.client.clone(),
            event: event.event.clone(),
            reply_until: event.reply_until,
            pushes: AtomicU32::new(0),
            local: self.local.clone(),
            store: self.store.clone(),
            tenant: self.settings.tenant.clone(),
            remember: self.settings.remember,
            budget,
        }
    }

    /// Waits for the lock without being in anybody's way, then handles the event.
    async fn wait(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        running: RunningCommand,
        key: &str,
        hold: LockConfig,
        budget: Arc<Budget>,
    ) -> ItemOutcome {
        let locks = self.locks.clone().source(event.kind().as_str());
        match locks.acquire(key, &LockConfig { wait: WAIT_FOR_LOCK, ..hold }).await {
            Ok(guard) => {
                let pass = Pass { running: Some(running), guard: Some(guard) };
                self.go(event, leased, pass, budget).await
            }
            Err(error) => {
                if !matches!(error, LockError::Held { .. }) {
                    tracing::warn!("no lock: it is tried later");
                }
                let _ = running.fail().await;
                later(self.settings.backoff, false)
            }
        }
    }

    async fn tell_to_wait(
        &self,
        event: &Arrived,
        running: RunningCommand,
        budget: Arc<Budget>,
    ) -> ItemOutcome {
        count_handled(event.kind(), "busy");
        let turn = self.turn(event, running.attempt(), budget);
        let text = [Message::text(self.settings.rules.busy_text())];
        if let Err(error) = turn.reply(&text).await {
            tracing::debug!("not told to wait: {error}");
        }
        // Not before: who died in between would have left an event without any answer.
        self.completed(event, Some(running)).await;
        self.ack()
    }

    /// Marks the event as handled; where the store does not answer it is told when it is back.
    pub(super) async fn completed(&self, event: &Arrived, running: Option<RunningCommand>) {
        let told = match &running {
            Some(running) => running.complete(&handled()).await.is_ok(),
            None => false,
        };
        if told { self.local.told(event.id) } else { self.local.done(event.id) }
    }

    /// Says in the store that the event was not handled, or may not have been. Where the store does
    /// not answer, the lease says it: unknown.
    pub(super) async fn not_completed(&self, running: Option<RunningCommand>, failed: &Failed) {
        let Some(running) = running else { return };
        match failed.then {
            Then::Unknown => drop(running.abandon().await),
            Then::Again | Then::Never => drop(running.fail().await),
        }
    }

    async fn failed(
        &self,
        event: &Arrived,
        leased: &LeasedItem,
        running: Option<RunningCommand>,
        failed: Failed,
    ) -> ItemOutcome {
        let attempt = leased.attempt;
        tracing::warn!(attempt, reason = %failed, "an event was not handled");
        self.local.give_up(event.id);
        self.not_completed(running, &failed).await;
        let for_good = match failed.then {
            Then::Again => false,
            Then::Unknown => self.settings.on_unknown == OnUnknown::Refuse,
            Then::Never => true,
        };
        if for_good || attempt >= self.settings.max_attempts {
            return self.bury(event, &failed.reason);
        }
        let unknown = failed.then == Then::Unknown;
        count_handled(event.kind(), if unknown { "unknown" } else { "failed" });
        ItemOutcome::Retry {
            after: self.backoff(attempt),
            counts: true,
            reason: failed.reason.as_ref().into(),
        }
    }

    fn ack(&self) -> ItemOutcome {
        ItemOutcome::Ack { retention: self.settings.remember }
    }

    fn bury(&self, event: &Arrived, reason: &str) -> ItemOutcome {
        count_handled(event.kind(), "dead");
        tracing::error!(id = %event.id, reason, "an event is a dead letter");
        // Events have no order among each other, so it holds up nobody.
        ItemOutcome::Bury { reason: reason.into(), blocks: false }
    }

    /// Where this is not heard, the lease runs out and the event is looked at again.
    pub(super) async fn resolve(&self, token: &Token, outcomes: &[(ItemId, ItemOutcome)]) {
        let resolve = self.store.resolve(&self.settings.queue, token, outcomes);
        if let Err(error) = with_timeout(self.settings.store_budget, resolve).await {
            metric_names::count_store_error(&error);
        }
    }
}

/// Not the event's fault.
fn later(after: Duration, counts: bool) -> ItemOutcome {
    ItemOutcome::Retry { after, counts, reason: "it could not be begun".into() }
}
