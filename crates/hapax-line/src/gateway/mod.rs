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
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::activity::{self, Activity, MessageQuota};
use hapax_core::queue::QueueName;
use hapax_core::worker::{CircuitBreaker, TargetHealth};
use hapax_core::{Store, metric_names};
use metrics::{counter, gauge, histogram};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};

use self::admission::Admission;
pub(crate) use self::event_queue::ReceivedEvent;
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

/// The longest pause between two tries while the bot is away: short, so that a bot that is back still
/// answers within the reply window.
const MAX_TRIAL_PAUSE: Duration = Duration::from_secs(5);

/// How often LINE is asked how many messages the channel may still send.
const QUOTA_INTERVAL: Duration = Duration::from_secs(600);

/// Receives webhooks and passes their events to a [`LineEventHandler`].
///
/// Any number of gateways may share a store. [`Gateway::receive`] answers as soon as the events are
/// stored; [`Gateway::run`] handles them, also those that a dead gateway left behind.
#[derive(Clone)]
pub struct Gateway {
    intake: Arc<Intake>,
    worker: Arc<EventWorker>,
    unprotected: Arc<UnprotectedExecution>,
    shared: Arc<GatewayShared>,
    client: LineClient,
}

/// The state that all parts of a gateway share.
pub(crate) struct GatewayShared {
    pub(crate) config: GatewayConfig,
    pub(crate) store: Arc<dyn Store>,
    /// The queue that gets new events; after it that of a secret that is being replaced.
    queues: Vec<QueueName>,
    pub(crate) local: LocalState,
    /// Tells whether the bot takes events.
    breaker: CircuitBreaker,
    slots: HandlingSlots,
    /// Whether the gateway begins no further event.
    stopping: AtomicBool,
    /// Wakes this process's worker without the store.
    stored: Notify,
    /// How many messages the channel may send; `None` before LINE has told.
    quota: watch::Sender<Option<MessageQuota>>,
}

impl GatewayShared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn count_event(&self, kind: EventKind, result: &'static str) {
        counter!(metric_names::LINE_EVENTS, "event_type" => kind.as_str(), "result" => result)
            .increment(1);
        self.record(result);
    }

    fn count_handled(&self, kind: EventKind, result: &'static str) {
        counter!(metric_names::LINE_HANDLED, "event_type" => kind.as_str(), "result" => result)
            .increment(1);
        // An event that is recognised only when it is handled was counted when it came.
        if result != "duplicate" {
            self.record(result);
        }
    }

    /// Records as activity what happened to an event or a message.
    pub(crate) fn record(&self, what: &'static str) {
        activity::record(Activity::Line { tenant: &self.config.tenant, what });
    }
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
        let shared = Arc::new(GatewayShared {
            local: LocalState::new(STORED_EVENT_RETENTION + config.store_timeout),
            breaker: CircuitBreaker::new(
                TargetHealth::Up,
                config.backoff.at_most(MAX_TRIAL_PAUSE),
                report_health,
            ),
            slots: HandlingSlots(Arc::new(Semaphore::new(config.max_in_flight))),
            stopping: AtomicBool::new(false),
            stored: Notify::new(),
            quota: watch::Sender::new(None),
            queues: config.queue.clone().map_or_else(|| secrets.queues(), |queue| vec![queue]),
            store,
            config,
        });
        let admission = Arc::new(Admission::new(shared.clone()));
        let execution = Execution {
            handler,
            client: client.clone(),
            admission: admission.clone(),
            shared: shared.clone(),
        };
        let execution = Arc::new(execution);
        let unprotected = Arc::new(UnprotectedExecution {
            admission: admission.clone(),
            execution: execution.clone(),
            shared: shared.clone(),
        });
        let intake = Intake { secrets, unprotected: unprotected.clone(), shared: shared.clone() };
        let worker = EventWorker {
            admission,
            execution,
            unprotected: unprotected.clone(),
            shared: shared.clone(),
        };
        Self { intake: Arc::new(intake), worker: Arc::new(worker), unprotected, shared, client }
    }

    /// The queue that stores this channel's events until they are handled.
    pub fn queue(&self) -> &QueueName {
        &self.shared.queues[0]
    }

    /// Whether the bot takes events. While it is down events are stored and wait; no attempt is used up,
    /// and one event tries from time to time.
    pub fn health(&self) -> watch::Receiver<TargetHealth> {
        self.shared.breaker.health()
    }

    /// How many messages the channel may send in this month, and has sent; read every ten minutes. `None` before LINE has told.
    pub fn quota(&self) -> watch::Receiver<Option<MessageQuota>> {
        self.shared.quota.subscribe()
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
        set_up_gauge(&self.shared.breaker.health().borrow());
        tokio::select! {
            () = self.worker.run(stop) => {}
            () = self.unprotected.report_handled_forever() => {}
            () = self.read_quota_forever() => {}
        }
        let GatewayShared { config, slots, stopping, .. } = &*self.shared;
        stopping.store(true, Ordering::Relaxed);
        let finished = slots.all_free(config.max_in_flight);
        if timeout(config.shutdown_timeout, finished).await.is_err() {
            tracing::warn!("some events are still in hand; their leases run out by themselves");
        }
        slots.0.close();
        let _ = timeout(config.store_timeout, self.unprotected.report_handled()).await;
    }
}

impl Gateway {
    /// Best effort: the quota is only shown.
    async fn read_quota_forever(&self) {
        loop {
            match self.client.quota().await {
                Ok(quota) => drop(self.shared.quota.send_replace(Some(quota))),
                Err(error) => tracing::debug!("LINE's quota was not read: {error}"),
            }
            sleep(QUOTA_INTERVAL).await;
        }
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

fn report_health(health: &TargetHealth) {
    set_up_gauge(health);
    match health {
        TargetHealth::Up => tracing::info!("the bot is up"),
        TargetHealth::Down(reason) => tracing::warn!("the bot is down: {reason}"),
    }
}

fn set_up_gauge(health: &TargetHealth) {
    let is_up = *health == TargetHealth::Up;
    gauge!(metric_names::LINE_BOT_UP).set(f64::from(u8::from(is_up)));
}
