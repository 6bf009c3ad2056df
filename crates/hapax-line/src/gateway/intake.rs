//! Checks a webhook and stores its events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::lock::OnStoreError;
use hapax_core::queue::{Enqueued, QueueItem};
use hapax_core::{metric_names, trace, with_timeout};
use tokio::time::Instant;

use super::{Answer, Arrived, Inner, count_event};
use crate::{Event, Kind, Webhook};

/// Carries the correlation id beside the event.
pub(super) const CORRELATION: &str = "correlation";

impl Inner {
    pub(super) async fn receive(self: &Arc<Self>, signature: Option<&str>, body: &Bytes) -> Answer {
        // Nothing is read before it is known who wrote it.
        if !signature.is_some_and(|signature| self.secrets.verify(body, signature)) {
            return Answer::Unsigned;
        }
        let Ok(webhook) = Webhook::parse(body) else { return Answer::Malformed };
        if webhook.malformed > 0 {
            tracing::warn!(events = webhook.malformed, "events of a webhook are no JSON objects");
            (0..webhook.malformed).for_each(|_| count_event(Kind::OTHER, "malformed"));
        }
        let arrived: Vec<_> = webhook.events.into_iter().map(|event| self.arrive(event)).collect();
        if arrived.is_empty() { Answer::Taken } else { self.take_in(arrived).await }
    }

    fn arrive(&self, event: Event) -> Arrived {
        Arrived {
            id: event.id(&self.settings.tenant),
            event,
            correlation: format!("{:08x}", fastrand::u32(..)).into(),
            trace: trace::current(),
            reply_until: Instant::now() + self.settings.reply_within,
        }
    }

    /// Stores events, all in one step.
    async fn take_in(self: &Arc<Self>, arrived: Vec<Arrived>) -> Answer {
        let items: Vec<_> = arrived.iter().map(|event| self.item(event)).collect();
        let enqueue = self.store.enqueue(&self.settings.queue, &items);
        let since = Instant::now();
        match with_timeout(self.settings.store_budget, enqueue).await {
            Ok(answers) => {
                for (event, answer) in arrived.into_iter().zip(answers) {
                    self.taken_in(event, answer);
                }
                self.stored.notify_one();
                Answer::Taken
            }
            Err(error) => {
                metric_names::count_store_error(&error);
                tracing::warn!(reason = error.label(), "events could not be stored");
                self.not_stored(arrived, since.elapsed())
            }
        }
    }

    fn taken_in(&self, event: Arrived, answer: Enqueued) {
        let result = match answer {
            Enqueued::Accepted => "accepted",
            Enqueued::Duplicate => "duplicate",
        };
        count_event(event.kind(), result);
        let _of_it = event.span().entered();
        tracing::debug!(event_type = %event.kind(), "{result}");
        if answer == Enqueued::Accepted {
            self.local.stored(event);
        }
    }

    /// They may be stored all the same: an answer can be lost. Whoever finds them there and knows that
    /// they were handled leaves them alone.
    fn not_stored(self: &Arc<Self>, arrived: Vec<Arrived>, took: Duration) -> Answer {
        let places = match self.settings.on_store_error {
            OnStoreError::Open => self.places_for(arrived.len()),
            OnStoreError::Closed => None,
        };
        let Some(mut places) = places else {
            arrived.iter().for_each(|event| count_event(event.kind(), "refused"));
            return Answer::Unavailable;
        };
        for event in arrived {
            self.handle_unprotected(event, places.split(1), took);
        }
        Answer::Taken
    }

    pub(super) fn item(&self, event: &Arrived) -> QueueItem {
        QueueItem::new(&self.settings.tenant, event.kind().as_str(), event.event.webhook())
            .id(event.id)
            .content_type("application/json")
            .header(CORRELATION, &event.correlation)
    }
}
