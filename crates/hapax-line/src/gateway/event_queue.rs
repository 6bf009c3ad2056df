//! Received events, and the queue that stores them.

use std::sync::Arc;

use hapax_core::queue::{Enqueued, ItemId, LeasedItem, QueueItem, QueueName};
use hapax_core::trace::{self, TRACEPARENT, Traceparent};
use hapax_core::worker::QueueLeaser;
use hapax_core::{Fingerprint, Key, Operation, StoreError, Tenant, deadline_after, with_timeout};
use tokio::time::Instant;

use super::GatewayShared;
use super::admission::OPERATION;
use crate::{EventKind, GatewayConfig, LineEvent, LockRule, WebhookBody};

/// The queue header that carries the correlation id.
const CORRELATION: &str = "correlation";
/// How many hexadecimal digits of a digest name a source.
const SOURCE_KEY_LENGTH: usize = 32;

/// An event on its way from the webhook to the handler.
#[derive(Clone)]
pub(crate) struct ReceivedEvent {
    pub(crate) id: ItemId,
    pub(crate) event: LineEvent,
    /// Joins the log lines of one event; random.
    pub(crate) correlation: Arc<str>,
    pub(crate) trace: Option<Traceparent>,
    /// Until when the reply token is used.
    pub(crate) reply_until: Instant,
}

impl ReceivedEvent {
    /// An event of a webhook that arrived now.
    pub(super) fn new(event: LineEvent, config: &GatewayConfig) -> Self {
        Self {
            id: event.id(&config.tenant),
            event,
            correlation: format!("{:08x}", fastrand::u32(..)).into(),
            trace: trace::current(),
            reply_until: deadline_after(Instant::now(), config.reply_window),
        }
    }

    /// The event of a leased row; `None` where the row holds no event of LINE's.
    pub(super) fn from_row(row: &LeasedItem, config: &GatewayConfig) -> Option<Self> {
        let event = WebhookBody::parse(&row.item.payload).ok()?.events.pop()?;
        let header = |name| row.item.headers.get(name).map(String::as_str);
        Some(Self {
            id: row.item.id,
            event,
            correlation: header(CORRELATION).unwrap_or_default().into(),
            trace: header(TRACEPARENT).and_then(Traceparent::parse),
            reply_until: deadline_after(
                Instant::now(),
                config.reply_window.saturating_sub(row.age),
            ),
        })
    }

    /// The key of the command that records that the event was begun and done.
    pub(super) fn command_key(&self, tenant: &Tenant) -> Key {
        Key::command(tenant, Operation(OPERATION), &self.id.to_string())
            .expect("a UUID is a valid name")
    }

    fn to_item(&self, config: &GatewayConfig) -> QueueItem {
        let item = QueueItem::new(&config.tenant, self.kind().as_str(), self.event.webhook())
            .id(self.id)
            .content_type("application/json")
            .header(CORRELATION, &self.correlation);
        // Rows of one key are leased in order, by one gateway at a time.
        match self.source_key(config) {
            Some(key) => item.key(&key),
            None => item,
        }
    }

    /// The source whose unlocked events are handled in order; `None` for an event that takes its user's
    /// lock, or has no source. A digest, because operators see the keys of dead letters.
    pub(super) fn source_key(&self, config: &GatewayConfig) -> Option<String> {
        let is_locked = config.rules.rule_for(&self.event) != LockRule::None;
        if is_locked && self.event.user_id().is_some() {
            return None;
        }
        let source = self.event.source()?;
        let digest = Fingerprint::of(&[self.event.destination().as_bytes(), source.as_bytes()]);
        Some(digest.as_str()[..SOURCE_KEY_LENGTH].to_owned())
    }

    pub(super) fn kind(&self) -> EventKind {
        self.event.kind()
    }

    /// The span of all log lines of this event, the bot's own included.
    pub(super) fn span(&self) -> tracing::Span {
        tracing::error_span!("event", correlation = &*self.correlation)
    }
}

/// The queue that stores events until they are handled.
impl GatewayShared {
    /// Stores events in one call; one answer for each.
    pub(super) async fn enqueue(
        &self,
        events: &[ReceivedEvent],
    ) -> Result<Vec<Enqueued>, StoreError> {
        let items: Vec<_> = events.iter().map(|event| event.to_item(&self.config)).collect();
        let enqueue = self.store.enqueue(&self.queues[0], &items);
        with_timeout(self.config.store_timeout, enqueue).await
    }

    /// A leaser of each queue, the oldest first: nothing is added to that one, so it runs empty.
    pub(super) fn leasers(&self) -> Vec<QueueLeaser> {
        let GatewayConfig { lease, store_timeout, pausable, .. } = &self.config;
        let leaser = |queue: &QueueName| {
            let leaser = QueueLeaser::new(self.store.clone(), queue.clone(), *lease)
                .store_timeout(*store_timeout);
            if *pausable { leaser.pausable(self.store.clone()) } else { leaser }
        };
        self.queues.iter().rev().map(leaser).collect()
    }
}
