//! Checks a webhook and stores its events.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::activity::{self, Activity, ClaimActivity};
use hapax_core::lock::OnStoreError;
use hapax_core::metric_names;
use hapax_core::queue::Enqueued;
use tokio::time::Instant;

use super::unprotected::UnprotectedExecution;
use super::{GatewayShared, ReceivedEvent, WebhookStatus};
use crate::{ChannelSecrets, EventKind, WebhookBody};

/// Receives webhooks.
pub(super) struct Intake {
    pub(super) secrets: ChannelSecrets,
    pub(super) unprotected: Arc<UnprotectedExecution>,
    pub(super) shared: Arc<GatewayShared>,
}

impl Intake {
    pub(super) async fn receive(&self, signature: Option<&str>, body: &Bytes) -> WebhookStatus {
        // The signature comes first: an unsigned body is not parsed.
        if !signature.is_some_and(|signature| self.secrets.verify(body, signature)) {
            return WebhookStatus::Unsigned;
        }
        let Ok(webhook) = WebhookBody::parse(body) else { return WebhookStatus::Malformed };
        if webhook.malformed > 0 {
            tracing::warn!(events = webhook.malformed, "events of a webhook are no JSON objects");
            (0..webhook.malformed)
                .for_each(|_| self.shared.count_event(EventKind::OTHER, "malformed"));
        }
        if webhook.events.is_empty() {
            return WebhookStatus::Accepted;
        }
        let events = webhook.events.into_iter();
        self.store(events.map(|event| ReceivedEvent::new(event, &self.shared.config)).collect())
            .await
    }

    async fn store(&self, events: Vec<ReceivedEvent>) -> WebhookStatus {
        let begun = Instant::now();
        match self.shared.enqueue(&events).await {
            Ok(answers) => {
                for (event, answer) in events.into_iter().zip(answers) {
                    self.record_stored(event, answer);
                }
                self.shared.stored.notify_one();
                WebhookStatus::Accepted
            }
            Err(error) => {
                metric_names::count_store_error(&error);
                tracing::warn!(reason = error.label(), "events could not be stored");
                self.handle_unstored(events, begun.elapsed())
            }
        }
    }

    fn record_stored(&self, event: ReceivedEvent, answer: Enqueued) {
        let result = match answer {
            Enqueued::Accepted => "accepted",
            Enqueued::Duplicate => "duplicate",
        };
        self.shared.count_event(event.kind(), result);
        if answer == Enqueued::Duplicate {
            let key = event.command_key(&self.shared.config.tenant);
            let (answer, took) = (ClaimActivity::Replayed, None);
            activity::record(Activity::Claim { key: &key, answer, took });
        }
        let _entered = event.span().entered();
        tracing::debug!(event_type = %event.kind(), "{result}");
        if answer == Enqueued::Accepted {
            self.shared.local.note_stored(event);
        }
    }

    /// Handles events from memory, or refuses them, after `store_took` of waiting for the store. They may
    /// be stored all the same, because an answer can be lost; [`LocalState`](super::LocalState) keeps a leased copy from
    /// being handled again.
    fn handle_unstored(&self, events: Vec<ReceivedEvent>, store_took: Duration) -> WebhookStatus {
        let slots = match self.shared.config.on_store_error {
            OnStoreError::Open => self.shared.slots.try_acquire(events.len()),
            OnStoreError::Closed => None,
        };
        let Some(mut slots) = slots else {
            events.iter().for_each(|event| self.shared.count_event(event.kind(), "refused"));
            return WebhookStatus::Unavailable;
        };
        for event in events {
            self.unprotected.start(event, slots.split(1), store_took);
        }
        WebhookStatus::Accepted
    }
}
