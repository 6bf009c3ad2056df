//! Handles events from memory while the store is down, without lock or durability, and reports them to
//! the store when it is back.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::OnUnknown;
use hapax_core::command::{Begun, CommandError, RunningCommand, Started};
use hapax_core::queue::ItemId;
use tokio::time::{Instant, sleep, timeout};
use tracing::Instrument;

use super::admission::Admission;
use super::execution::{Execution, handled_mark};
use super::local_state::SourceTurn;
use super::{GatewayShared, HandlingSlot, ReceivedEvent, SharedTimeout};
use crate::{EventContext, EventHandlerError};

/// Executes events without the store.
pub(super) struct UnprotectedExecution {
    pub(super) admission: Arc<Admission>,
    pub(super) execution: Arc<Execution>,
    pub(super) shared: Arc<GatewayShared>,
}

impl UnprotectedExecution {
    /// Handles an event in a task, unless this process is handling it already. `store_took` of the
    /// event's store timeout is spent.
    pub(super) fn start(
        self: &Arc<Self>,
        event: ReceivedEvent,
        slot: Option<HandlingSlot>,
        store_took: Duration,
    ) {
        if !self.shared.local.begin_unprotected(event.id) {
            return self.shared.count_event(event.kind(), "duplicate");
        }
        self.shared.count_event(event.kind(), "unprotected");
        // Here and not in the task, so that events of one source have their order.
        let mut turn = self.enter_source(&event);
        let (this, span) = (self.clone(), event.span());
        let store_timeout = self.shared.config.store_timeout.saturating_sub(store_took);
        let work = async move {
            let _slot = slot;
            tracing::warn!("the store is down: the event is handled unprotected");
            this.handle(&event, Arc::new(SharedTimeout::new(store_timeout)), &mut turn).await;
        };
        tokio::spawn(work.instrument(span));
    }

    /// Handles the event, and again while the bot is away: until it is back, or the queue has the event.
    async fn handle(
        &self,
        event: &ReceivedEvent,
        store_timeout: Arc<SharedTimeout>,
        turn: &mut Option<SourceTurn>,
    ) {
        let begun = Instant::now();
        while let Some(wait) = self.try_to_handle(event, store_timeout.clone(), turn).await {
            self.shared.local.end_unprotected(event.id);
            if self.enqueue(event).await {
                return;
            }
            if begun.elapsed() >= self.shared.config.retention {
                return self.give_up(event, "the bot is away");
            }
            self.shared.local.continue_unprotected(event.id);
            sleep(wait).await;
        }
    }

    /// Handles the event, with retries; how long it waits where the bot is to blame.
    async fn try_to_handle(
        &self,
        event: &ReceivedEvent,
        store_timeout: Arc<SharedTimeout>,
        turn: &mut Option<SourceTurn>,
    ) -> Option<Duration> {
        // The store may answer this call: then other processes know that the event is being handled.
        let begin = self.admission.begin(event.id, self.shared.config.on_unknown);
        let running = match store_timeout.run(begin).await {
            Some(Ok(Started::Running(running))) => Some(running),
            // The event was handled, or another process is handling it.
            Some(Ok(Started::Answered(_))) => {
                self.shared.count_handled(event.kind(), "duplicate");
                self.shared.local.end_unprotected(event.id);
                return None;
            }
            Some(Err(_)) | None => None,
        };
        let work = self.run_handler_with_retries(event, running.as_ref(), store_timeout, turn);
        match work.await {
            Ok(()) => {
                self.shared.count_handled(event.kind(), "done");
                self.execution.mark_handled(event, running).await;
                None
            }
            Err((error, Some(wait))) => {
                self.execution.mark_failed(running, &error).await;
                self.shared.count_handled(event.kind(), "away");
                Some(wait)
            }
            Err((error, None)) => {
                self.execution.mark_failed(running, &error).await;
                self.shared.local.end_unprotected(event.id);
                self.enqueue_or_drop(event, &error).await;
                None
            }
        }
    }

    fn enter_source(&self, event: &ReceivedEvent) -> Option<SourceTurn> {
        let source = event.source_key(&self.shared.config)?;
        Some(self.shared.local.enter_source(&source))
    }

    /// Retries here, because the event is in no queue. The error has a wait where the bot is to blame.
    async fn run_handler_with_retries(
        &self,
        event: &ReceivedEvent,
        running: Option<&RunningCommand>,
        store_timeout: Arc<SharedTimeout>,
        turn: &mut Option<SourceTurn>,
    ) -> Result<(), (EventHandlerError, Option<Duration>)> {
        let earlier = running.map_or(0, |running| running.attempt() - 1);
        let mut attempt = 1;
        loop {
            if let Some(turn) = turn {
                turn.wait().await;
            }
            let context = EventContext {
                may_be_tried_elsewhere: earlier > 0,
                fence: running.map(RunningCommand::fence),
                ..self.execution.context(event, earlier + attempt, store_timeout.clone())
            };
            let send = self.shared.breaker.begin(event.id);
            let result = self.execution.run_handler(event, context).await;
            let bot_fails_for = self.execution.judge(&send, &result);
            let Err(error) = result else { return Ok(()) };
            tracing::warn!(attempt, reason = %error, "an event was not handled");
            let may_retry = error.may_retry(self.shared.config.on_unknown);
            let bot_fails_for = bot_fails_for.filter(|_| may_retry);
            if !may_retry || bot_fails_for.is_some() || attempt >= self.shared.config.max_attempts {
                return Err((error, bot_fails_for));
            }
            self.shared.count_handled(event.kind(), "failed");
            // Later events of the source pass meanwhile.
            *turn = None;
            sleep(self.shared.config.backoff.after(attempt)).await;
            *turn = self.enter_source(event);
            attempt += 1;
        }
    }

    /// Stores an event that could not be handled, if the store is back: the queue retries it, and makes
    /// it a dead letter in the end.
    async fn enqueue_or_drop(&self, event: &ReceivedEvent, error: &EventHandlerError) {
        let must_not_retry =
            error.is_unknown() && self.shared.config.on_unknown == OnUnknown::Refuse;
        if !must_not_retry && self.enqueue(event).await {
            return self.shared.count_handled(event.kind(), "failed");
        }
        self.give_up(event, &error.reason);
    }

    /// Stores the event, if the store is back.
    async fn enqueue(&self, event: &ReceivedEvent) -> bool {
        let is_stored = self.shared.enqueue(std::slice::from_ref(event)).await.is_ok();
        if is_stored {
            self.shared.stored.notify_one();
        }
        is_stored
    }

    fn give_up(&self, event: &ReceivedEvent, reason: &str) {
        self.shared.count_handled(event.kind(), "dead");
        tracing::error!(reason, "an event is given up, and nowhere stored");
    }

    /// Reports handled events to the store again and again, and forgets old ones.
    pub(super) async fn report_handled_forever(&self) {
        loop {
            sleep(self.shared.config.poll_interval).await;
            self.shared.local.remove_expired();
            self.report_handled().await;
        }
    }

    /// Reports the events that were handled without the store's knowledge, until the store fails.
    pub(super) async fn report_handled(&self) {
        let two_calls = self.shared.config.store_timeout * 2;
        for id in self.shared.local.unreported() {
            match timeout(two_calls, self.report(id)).await {
                Ok(Ok(true)) => self.shared.local.forget_handled(id),
                // Another process is handling it, or our own mark has not run out yet.
                Ok(Ok(false)) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    /// Whether the store now knows that the event was handled.
    async fn report(&self, id: ItemId) -> Result<bool, CommandError> {
        Ok(match self.admission.begin(id, OnUnknown::TakeOver).await? {
            Started::Running(running) => {
                running.complete(&handled_mark()).await?;
                true
            }
            Started::Answered(begun) => !matches!(begun, Begun::InProgress { .. }),
        })
    }
}
