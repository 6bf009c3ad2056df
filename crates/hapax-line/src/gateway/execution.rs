//! Runs the handler for an admitted event and turns the result into the outcome of its queue row.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hapax_core::command::{RunningCommand, StoredResponse};
use hapax_core::lock::LockGuard;
use hapax_core::queue::{ItemOutcome, LeasedItem};
use hapax_core::trace;
use hapax_core::worker::{BegunSend, Blame, DoubtfulFailure};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::Instrument;

use super::admission::{Admission, AdmissionDecision, Permit, attempt_number, was_tried_before};
use super::{GatewayShared, ReceivedEvent, SharedTimeout};
use crate::handler::FailureKind;
use crate::{
    EventContext, EventHandlerError, EventKind, LineClient, LineEventHandler, LineMessage,
};

/// Executes events.
pub(super) struct Execution {
    pub(super) handler: Arc<dyn LineEventHandler>,
    pub(super) client: LineClient,
    pub(super) admission: Arc<Admission>,
    pub(super) shared: Arc<GatewayShared>,
}

impl Execution {
    /// Does what the admission decided; the outcome of the event's row.
    pub(super) async fn execute(
        &self,
        event: &ReceivedEvent,
        row: &LeasedItem,
        decision: AdmissionDecision,
        store_timeout: Arc<SharedTimeout>,
    ) -> ItemOutcome {
        match decision {
            AdmissionDecision::Execute(permit) => {
                self.handle(event, row, permit, store_timeout).await
            }
            AdmissionDecision::WaitForLock(running, lock) => {
                match self.admission.wait_for_lock(event, running, lock).await {
                    Some(permit) => self.handle(event, row, permit, store_timeout).await,
                    None => retry(self.shared.config.backoff.initial(), false),
                }
            }
            AdmissionDecision::TellToWait(running) => {
                self.tell_to_wait(event, running, store_timeout).await
            }
            AdmissionDecision::Duplicate => {
                self.shared.count_handled(event.kind(), "duplicate");
                self.ack()
            }
            AdmissionDecision::RetryLater(after) => retry(after, false),
            // Another process is handling the event; count our lease as its first attempt, which may have
            // begun without a lease.
            AdmissionDecision::InProgress(after) => retry(after, row.attempt == 1),
            AdmissionDecision::Bury(reason) => self.bury(event, reason),
        }
    }

    async fn handle(
        &self,
        event: &ReceivedEvent,
        row: &LeasedItem,
        permit: Permit,
        store_timeout: Arc<SharedTimeout>,
    ) -> ItemOutcome {
        let attempt = attempt_number(row, permit.running.as_ref());
        let context = EventContext {
            fence: permit.fence(),
            may_be_tried_elsewhere: was_tried_before(row, permit.running.as_ref()),
            ..self.context(event, attempt, store_timeout)
        };
        let Permit { running, guard } = permit;
        // A guard without a lock was given where the store failed.
        let guard = guard.filter(LockGuard::is_protected);
        if guard.is_some() {
            tracing::info!(event_type = %event.kind(), "acquired");
        }
        let send = self.shared.breaker.begin(event.id);
        let result = self.run_handler(event, context).await;
        let bot_fails_for = self.judge(&send, &result);
        if let Some(guard) = guard {
            // Best effort: the lock expires by itself.
            let released = timeout(self.shared.config.store_timeout, guard.release()).await;
            let released = if matches!(released, Ok(Ok(()))) { "released" } else { "not released" };
            tracing::info!(event_type = %event.kind(), "{released}");
        }
        match result {
            Ok(()) => {
                self.shared.count_handled(event.kind(), "done");
                self.mark_handled(event, running).await;
                self.ack()
            }
            Err(error) => self.retry_or_bury(event, row, running, error, bot_fails_for).await,
        }
    }

    /// Tells the circuit breaker how handling ended. Where the bot is to blame, and not the event: how long
    /// the event waits for it, without using up an attempt.
    pub(super) fn judge(
        &self,
        send: &BegunSend,
        result: &Result<(), EventHandlerError>,
    ) -> Option<Duration> {
        let breaker = &self.shared.breaker;
        let Err(error) = result else {
            breaker.taken(send);
            return None;
        };
        match error.kind {
            FailureKind::Retry | FailureKind::Permanent | FailureKind::Panicked => {
                breaker.answered(send);
                None
            }
            FailureKind::Away => Some(breaker.away(send, error.reason.clone())),
            FailureKind::Rejected | FailureKind::Unknown => {
                let reason = error.reason.clone();
                let retry_after = Duration::ZERO;
                let failure = DoubtfulFailure { reason, may_be_item: true, retry_after };
                match breaker.failed(send, failure) {
                    Blame::Item => None,
                    Blame::Target(after) => Some(after),
                }
            }
        }
    }

    /// Runs the handler within its timeout.
    pub(super) async fn run_handler(
        &self,
        event: &ReceivedEvent,
        context: EventContext,
    ) -> Result<(), EventHandlerError> {
        let (handler, trace) = (self.handler.clone(), event.trace.clone());
        let event = event.event.clone();
        // In a task, so that a panic is an outcome too; it is aborted with the set.
        let mut task = JoinSet::new();
        let work = trace::within(trace, async move { handler.handle(&event, &context).await });
        task.spawn(work.in_current_span());
        match timeout(self.shared.config.handler_timeout, task.join_next()).await {
            Ok(Some(Ok(result))) => result,
            Ok(_) => Err(EventHandlerError::panicked()),
            Err(_) => Err(EventHandlerError::unknown("handling the event took too long")),
        }
    }

    pub(super) fn context(
        &self,
        event: &ReceivedEvent,
        attempt: u32,
        store_timeout: Arc<SharedTimeout>,
    ) -> EventContext {
        EventContext {
            received: event.clone(),
            attempt,
            may_be_tried_elsewhere: attempt > 1,
            fence: None,
            client: self.client.clone(),
            pushes: AtomicU32::new(0),
            shared: self.shared.clone(),
            store_timeout,
        }
    }

    async fn tell_to_wait(
        &self,
        event: &ReceivedEvent,
        running: RunningCommand,
        store_timeout: Arc<SharedTimeout>,
    ) -> ItemOutcome {
        self.shared.count_handled(event.kind(), "busy");
        // In a group most lines are not for the bot, and a busy text would answer them.
        let is_for_bot = event.event.is_one_to_one()
            || event.event.mentions_bot()
            || event.kind() == EventKind::POSTBACK;
        if is_for_bot {
            let context = self.context(event, running.attempt(), store_timeout);
            let text = [LineMessage::text(self.shared.config.rules.busy_text())];
            if let Err(error) = context.reply(&text).await {
                tracing::debug!("the user was not told to wait: {error}");
            }
        }
        // Only after the reply: a process that died in between would leave the event unanswered.
        self.mark_handled(event, Some(running)).await;
        self.ack()
    }

    /// Marks the event as handled in the store; if that fails, it is reported when the store is back.
    pub(super) async fn mark_handled(
        &self,
        event: &ReceivedEvent,
        running: Option<RunningCommand>,
    ) {
        if let Some(running) = running
            && running.complete(&handled_mark()).await.is_ok()
        {
            return self.shared.local.forget_handled(event.id);
        }
        self.shared.local.set_handled(event.id);
    }

    /// Ends the event's mark in the store after a failure. If that fails, the mark's lease runs out and
    /// the outcome is unknown.
    pub(super) async fn mark_failed(
        &self,
        running: Option<RunningCommand>,
        error: &EventHandlerError,
    ) {
        let Some(running) = running else { return };
        match error.is_unknown() {
            true => drop(running.abandon().await),
            false => drop(running.fail().await),
        }
    }

    async fn retry_or_bury(
        &self,
        event: &ReceivedEvent,
        row: &LeasedItem,
        running: Option<RunningCommand>,
        error: EventHandlerError,
        bot_fails_for: Option<Duration>,
    ) -> ItemOutcome {
        let attempt = row.attempt;
        tracing::warn!(attempt, reason = %error, "an event was not handled");
        self.shared.local.end_unprotected(event.id);
        self.mark_failed(running, &error).await;
        let may_retry = error.may_retry(self.shared.config.on_unknown);
        if let Some(after) = bot_fails_for.filter(|_| may_retry) {
            self.shared.count_handled(event.kind(), "away");
            return hand_back(after, &error.reason);
        }
        if !may_retry || attempt >= self.shared.config.max_attempts {
            return self.bury(event, &error.reason);
        }
        self.shared
            .count_handled(event.kind(), if error.is_unknown() { "unknown" } else { "failed" });
        let after = self.shared.config.backoff.after(attempt);
        ItemOutcome::Retry {
            after,
            counts: true,
            reason: error.reason.as_ref().into(),
            // Later events of its source pass.
            keeps_place: false,
        }
    }

    fn ack(&self) -> ItemOutcome {
        ItemOutcome::Ack { retention: self.shared.config.retention }
    }

    fn bury(&self, event: &ReceivedEvent, reason: &str) -> ItemOutcome {
        self.shared.count_handled(event.kind(), "dead");
        tracing::error!(id = %event.id, reason, "an event is a dead letter");
        // A dead letter blocks no later event of its source.
        ItemOutcome::Bury { reason: reason.into(), blocks: false }
    }
}

/// The response that is stored for a handled event.
pub(super) fn handled_mark() -> StoredResponse {
    StoredResponse { status: 200, headers: Vec::new(), body: bytes::Bytes::new() }
}

/// Hands an event back without counting an attempt.
pub(super) fn hand_back(after: Duration, reason: &str) -> ItemOutcome {
    ItemOutcome::Retry { after, counts: false, reason: reason.into(), keeps_place: true }
}

fn retry(after: Duration, counts: bool) -> ItemOutcome {
    ItemOutcome::Retry { after, counts, reason: "it could not be begun".into(), keeps_place: true }
}
