//! While the store is away: events are handled from memory, without lock or durability, and the store
//! is told when it is back.

use std::sync::Arc;
use std::time::Duration;

use hapax_core::command::{Begun, CommandError, RunningCommand, Started, StoredResponse};
use hapax_core::queue::ItemId;
use hapax_core::{OnUnknown, with_timeout};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{sleep, timeout};
use tracing::Instrument;

use super::{Arrived, Budget, Inner, count_event, count_handled};
use crate::handler::Then;
use crate::{Failed, Turn};

/// What the mark of a handled event says.
pub(super) fn handled() -> StoredResponse {
    StoredResponse { status: 200, headers: Vec::new(), body: bytes::Bytes::new() }
}

impl Inner {
    pub(super) fn places_for(&self, events: usize) -> Option<OwnedSemaphorePermit> {
        let events = u32::try_from(events).ok()?;
        self.places.clone().try_acquire_many_owned(events).ok()
    }

    /// Handles an event from memory, unless this process is at it already.
    pub(super) fn handle_unprotected(
        self: &Arc<Self>,
        event: Arrived,
        place: Option<OwnedSemaphorePermit>,
        took: Duration,
    ) {
        if !self.local.begin(event.id) {
            return count_event(event.kind(), "duplicate");
        }
        count_event(event.kind(), "unprotected");
        let (this, span) = (self.clone(), event.span());
        let work = async move {
            let _place = place;
            tracing::warn!("without the store: it is handled unprotected");
            this.try_unprotected(&event, Arc::new(this.budget(took))).await;
        };
        tokio::spawn(work.instrument(span));
    }

    async fn try_unprotected(&self, event: &Arrived, budget: Arc<Budget>) {
        // The store may answer this all the same: then others know that it is in hand.
        let policy = self.settings.on_unknown;
        let running = match budget.spend(self.start(event.id, policy)).await {
            Some(Ok(Started::Running(running))) => Some(running),
            // It was handled, or is in other hands.
            Some(Ok(Started::Answered(_))) => {
                count_handled(event.kind(), "duplicate");
                return self.local.give_up(event.id);
            }
            Some(Err(_)) | None => None,
        };
        match self.until_handled(event, running.as_ref(), budget).await {
            Ok(()) => {
                count_handled(event.kind(), "done");
                self.completed(event, running).await;
            }
            Err(failed) => {
                self.not_completed(running, &failed).await;
                self.local.give_up(event.id);
                self.last_resort(event, &failed).await;
            }
        }
    }

    /// Tries it again and again, here: no queue does.
    async fn until_handled(
        &self,
        event: &Arrived,
        running: Option<&RunningCommand>,
        budget: Arc<Budget>,
    ) -> Result<(), Failed> {
        let earlier = running.map_or(0, |running| running.attempt() - 1);
        let mut attempt = 1;
        loop {
            let turn = Turn {
                tried_elsewhere: earlier > 0,
                fence: running.map(RunningCommand::fence),
                ..self.turn(event, earlier + attempt, budget.clone())
            };
            let Err(failed) = self.handle(event, turn).await else { return Ok(()) };
            tracing::warn!(attempt, reason = %failed, "an event was not handled");
            let again = failed.then == Then::Again
                || failed.then == Then::Unknown && self.settings.on_unknown == OnUnknown::TakeOver;
            if !again || attempt >= self.settings.max_attempts {
                return Err(failed);
            }
            count_handled(event.kind(), "failed");
            sleep(self.backoff(attempt)).await;
            attempt += 1;
        }
    }

    /// The store may be back: there it is tried again, and is a dead letter in the end.
    async fn last_resort(&self, event: &Arrived, failed: &Failed) {
        let must_not =
            failed.then == Then::Unknown && self.settings.on_unknown == OnUnknown::Refuse;
        let items = [self.item(event)];
        let enqueue = self.store.enqueue(&self.settings.queue, &items);
        if !must_not && with_timeout(self.settings.store_budget, enqueue).await.is_ok() {
            count_handled(event.kind(), "failed");
            return self.stored.notify_one();
        }
        count_handled(event.kind(), "dead");
        tracing::error!(reason = %failed, "an event is given up, and nowhere stored");
    }

    /// Goes on telling the store, whenever it is there, what was handled without it.
    pub(super) async fn keep_telling(&self) {
        loop {
            sleep(self.settings.poll).await;
            self.local.sweep();
            self.tell_what_is_done().await;
        }
    }

    pub(super) async fn tell_what_is_done(&self) {
        // For two calls.
        let limit = self.settings.store_budget * 2;
        for id in self.local.all_done() {
            match timeout(limit, self.tell(id)).await {
                Ok(Ok(true)) => self.local.told(id),
                // Somebody is at it, or our own begin is not undone yet.
                Ok(Ok(false)) => {}
                Ok(Err(_)) | Err(_) => return,
            }
        }
    }

    async fn tell(&self, id: ItemId) -> Result<bool, CommandError> {
        Ok(match self.start(id, OnUnknown::TakeOver).await? {
            Started::Running(running) => {
                running.complete(&handled()).await?;
                true
            }
            Started::Answered(begun) => !matches!(begun, Begun::InProgress { .. }),
        })
    }
}
