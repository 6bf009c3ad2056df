//! From a webhook to the bot's reply. Read the files in this order:
//!
//! ```text
//!   intake ──► event_queue ──► worker ──► admission ──► execution ──► LineEventHandler
//!   signature,   stored,       lease,     begin once,    handler,      (the bot)
//!   200          durable       renew      lock the user  outcome
//!      │                         │
//!      └── the store is down ────┴──────► unprotected (handled from memory)
//! ```
//!
//! [`LocalState`] is what this process knows about events without the store.

mod admission;
mod event_queue;
mod execution;
mod intake;
mod local_state;
mod service;
mod unprotected;
mod worker;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::{Store, metric_names};
use metrics::{counter, histogram};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use self::admission::Admission;
use self::event_queue::EventQueue;
use self::execution::Execution;
use self::intake::Intake;
pub(crate) use self::local_state::{LocalState, SharedTimeout};
pub use self::service::WebhookService;
use self::unprotected::UnprotectedExecution;
use self::worker::EventWorker;
use crate::{ChannelSecrets, EventKind, GatewayConfig, LineClient, LineEventHandler};

/// How long an event that this process stored is kept in memory: one that is still not leased by then
/// is with another gateway, or has to wait.
const STORED_EVENT_RETENTION: Duration = Duration::from_secs(2);

/// Receives webhooks and passes their events to a [`LineEventHandler`].
///
/// Any number of gateways may share a store. [`Gateway::receive`] answers as soon as the events are
/// stored; [`Gateway::run`] handles them, also those that a dead gateway left behind.
#[derive(Clone)]
pub struct Gateway {
    intake: Arc<Intake>,
    worker: Arc<EventWorker>,
    unprotected: Arc<UnprotectedExecution>,
    slots: HandlingSlots,
    config: Arc<GatewayConfig>,
}

/// The status of a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebhookStatus {
    /// 200: every event is stored, or was before.
    Accepted,
    /// 401: the signature is missing or wrong.
    Unsigned,
    /// 400: signed, but no webhook.
    Malformed,
    /// 503: nothing was stored; LINE may deliver the webhook again.
    Unavailable,
}

impl WebhookStatus {
    /// The HTTP status code.
    pub const fn code(self) -> u16 {
        match self {
            Self::Accepted => 200,
            Self::Unsigned => 401,
            Self::Malformed => 400,
            Self::Unavailable => 503,
        }
    }
}

impl Gateway {
    /// A gateway; it handles nothing before [`run`](Gateway::run).
    pub fn new(
        store: Arc<dyn Store>,
        secrets: ChannelSecrets,
        client: LineClient,
        handler: Arc<dyn LineEventHandler>,
        config: GatewayConfig,
    ) -> Self {
        let config = Arc::new(config);
        let local = LocalState::new(STORED_EVENT_RETENTION + config.store_timeout);
        let slots = HandlingSlots(Arc::new(Semaphore::new(config.max_in_flight)));
        let queue = Arc::new(EventQueue::new(store.clone(), config.clone()));
        let admission = Arc::new(Admission::new(store.clone(), local.clone(), config.clone()));
        let execution = Arc::new(Execution {
            handler,
            client,
            store,
            admission: admission.clone(),
            local: local.clone(),
            config: config.clone(),
        });
        let unprotected = Arc::new(UnprotectedExecution {
            admission: admission.clone(),
            execution: execution.clone(),
            queue: queue.clone(),
            local: local.clone(),
            config: config.clone(),
        });
        let intake = Intake {
            secrets,
            queue: queue.clone(),
            unprotected: unprotected.clone(),
            slots: slots.clone(),
            local: local.clone(),
            config: config.clone(),
        };
        let worker = EventWorker {
            queue,
            admission,
            execution,
            unprotected: unprotected.clone(),
            slots: slots.clone(),
            local,
            config: config.clone(),
        };
        Self { intake: Arc::new(intake), worker: Arc::new(worker), unprotected, slots, config }
    }

    /// Receives a webhook: the value of `X-Line-Signature`, and the raw body. Answers within
    /// [`GatewayConfig::store_timeout`], however slow the bot or the store is.
    pub async fn receive(&self, signature: Option<&str>, body: &Bytes) -> WebhookStatus {
        let begun = Instant::now();
        let status = self.intake.receive(signature, body).await;
        let label = status.code().to_string();
        histogram!(metric_names::LINE_WEBHOOK, "status" => label).record(begun.elapsed());
        status
    }

    /// The webhook as a tower service: `axum::Router::route_service("/line/webhook", …)`.
    pub fn service(&self) -> WebhookService {
        WebhookService(self.clone())
    }

    /// Handles stored events until `stop`; then waits for the events in hand, for at most
    /// [`GatewayConfig::shutdown_timeout`]. To be called once: afterwards no event is accepted that
    /// cannot be stored.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let stop = pin!(stop);
        tokio::select! {
            () = self.worker.run(stop) => {}
            () = self.unprotected.report_handled_forever() => {}
        }
        let finished = self.slots.all_free(self.config.max_in_flight);
        if timeout(self.config.shutdown_timeout, finished).await.is_err() {
            tracing::warn!("some events are still in hand; their leases run out by themselves");
        }
        self.slots.0.close();
        let _ = timeout(self.config.store_timeout, self.unprotected.report_handled()).await;
    }
}

/// Limits how many events are handled at once.
#[derive(Clone)]
struct HandlingSlots(Arc<Semaphore>);

/// Held while an event is handled, until its outcome is written.
type HandlingSlot = OwnedSemaphorePermit;

impl HandlingSlots {
    /// Slots for so many events, if they are free now.
    fn try_acquire(&self, events: usize) -> Option<HandlingSlot> {
        let events = u32::try_from(events).ok()?;
        self.0.clone().try_acquire_many_owned(events).ok()
    }

    /// Waits for a slot; `None` when the gateway stops.
    async fn acquire(&self) -> Option<HandlingSlot> {
        self.0.clone().acquire_owned().await.ok()
    }

    /// Waits until a slot is free and returns how many are; `None` when the gateway stops. None of them
    /// is taken: events that are handled without the store may need them meanwhile.
    async fn wait_for_free(&self) -> Option<usize> {
        let _one = self.0.acquire().await.ok()?;
        Some(1 + self.0.available_permits())
    }

    async fn all_free(&self, slots: usize) {
        let _ = self.0.acquire_many(u32::try_from(slots).unwrap_or(u32::MAX)).await;
    }
}

fn count_event(kind: EventKind, result: &'static str) {
    counter!(metric_names::LINE_EVENTS, "event_type" => kind.as_str(), "result" => result)
        .increment(1);
}

fn count_handled(kind: EventKind, result: &'static str) {
    counter!(metric_names::LINE_HANDLED, "event_type" => kind.as_str(), "result" => result)
        .increment(1);
}
