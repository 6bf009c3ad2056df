//! From a webhook to its handler: checked, stored, answered, then handled once.
//!
//! ```text
//!   receive ─► intake: signature, events, enqueue ─► 200
//!                                   │ the store is away
//!                                   ▼
//!                              unprotected ─────────────┐
//!   run ─► work: lease ─► admit: begin, lock ─► carry_out ─► Handler
//! ```

mod admit;
mod budget;
mod carry_out;
mod intake;
mod local;
mod service;
mod unprotected;
mod work;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hapax_core::command::Commands;
use hapax_core::lock::Locks;
use hapax_core::queue::ItemId;
use hapax_core::trace::Traceparent;
use hapax_core::{Claims, Store, metric_names};
use metrics::{counter, histogram};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, timeout};

pub(crate) use budget::Budget;
pub(crate) use local::Local;
pub use service::WebhookService;

use crate::{Event, Handler, Kind, LineClient, Secrets, Settings};

/// An event that this process stored and did not get to handle within this time is in other hands, or
/// has to wait.
const SOON: Duration = Duration::from_secs(2);

/// Takes webhooks in and hands their events to a [`Handler`].
///
/// Any number of gateways may share a store. [`Gateway::receive`] answers as soon as the events are
/// stored; [`Gateway::run`] handles them, also those that a gateway left behind which died.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    commands: Commands,
    locks: Locks,
    secrets: Secrets,
    client: LineClient,
    handler: Arc<dyn Handler>,
    settings: Settings,
    local: Local,
    /// Something was stored by this process.
    stored: Notify,
    /// One for each event in hand.
    places: Arc<Semaphore>,
}

/// An event on its way.
#[derive(Clone)]
struct Arrived {
    id: ItemId,
    event: Event,
    /// Joins the log lines of one event; says nothing about anybody.
    correlation: Arc<str>,
    trace: Option<Traceparent>,
    /// When its reply token is no longer believed to work.
    reply_until: Instant,
}

impl Arrived {
    fn kind(&self) -> Kind {
        self.event.kind()
    }

    /// All log lines of an event are in it, the bot's own too.
    fn span(&self) -> tracing::Span {
        tracing::error_span!("event", correlation = &*self.correlation)
    }
}

/// What a webhook is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200: every event is stored, or was before.
    Taken,
    /// 401: the signature is missing or wrong.
    Unsigned,
    /// 400: signed, and no webhook.
    Malformed,
    /// 503: nothing was stored; LINE may deliver it again.
    Unavailable,
}

impl Answer {
    /// As an HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::Taken => 200,
            Self::Unsigned => 401,
            Self::Malformed => 400,
            Self::Unavailable => 503,
        }
    }
}

impl Gateway {
    /// A gateway; nothing happens before [`run`](Gateway::run).
    pub fn new(
        store: Arc<dyn Store>,
        secrets: Secrets,
        client: LineClient,
        handler: Arc<dyn Handler>,
        settings: Settings,
    ) -> Self {
        let claims: Arc<dyn Claims> = store.clone();
        let tenant = &settings.tenant;
        Self(Arc::new(Inner {
            commands: Commands::new(claims.clone()).tenant(tenant.clone()),
            locks: Locks::new(claims).tenant(tenant.clone()),
            places: Arc::new(Semaphore::new(settings.in_flight)),
            stored: Notify::new(),
            local: Local::new(SOON + settings.store_budget),
            store,
            secrets,
            client,
            handler,
            settings,
        }))
    }

    /// Takes a webhook in: the value of `X-Line-Signature`, and the raw body. Answers within
    /// [`Settings::store_budget`], however slow the bot or the store is.
    pub async fn receive(&self, signature: Option<&str>, body: &Bytes) -> Answer {
        let since = Instant::now();
        let answer = self.0.receive(signature, body).await;
        let status = match answer {
            Answer::Taken => "200",
            Answer::Unsigned => "401",
            Answer::Malformed => "400",
            Answer::Unavailable => "503",
        };
        histogram!(metric_names::LINE_WEBHOOK, "status" => status).record(since.elapsed());
        answer
    }

    /// The webhook as a tower service: `axum::Router::route_service("/line/webhook", …)`.
    pub fn service(&self) -> WebhookService {
        WebhookService(self.clone())
    }

    /// Handles what is stored until `stop`; then lands what is in hand, for at most
    /// [`Settings::stop_limit`]. To be called once: afterwards nothing is taken in that cannot be
    /// stored.
    pub async fn run(&self, stop: impl Future<Output = ()>) {
        let (gateway, stop) = (&self.0, pin!(stop));
        tokio::select! {
            () = gateway.work(stop) => {}
            () = gateway.keep_telling() => {}
        }
        let everybody = u32::try_from(gateway.settings.in_flight).unwrap_or(u32::MAX);
        let landed = gateway.places.acquire_many(everybody);
        if timeout(gateway.settings.stop_limit, landed).await.is_err() {
            tracing::warn!("some events are still in hand; their leases run out by themselves");
        }
        gateway.places.close();
        let _ = timeout(gateway.settings.store_budget, gateway.tell_what_is_done()).await;
    }
}

impl Inner {
    /// What the store may still cost an event, where it took so long already.
    fn budget(&self, took: Duration) -> Budget {
        Budget::new(self.settings.store_budget.saturating_sub(took))
    }

    /// How long an event waits after its `nth` failure: twice as long each time, and never quite as
    /// long as another that failed at the same moment.
    fn backoff(&self, nth: u32) -> Duration {
        let Settings { backoff, backoff_max, .. } = self.settings;
        let doubled = 1_u32.checked_shl(nth.saturating_sub(1)).unwrap_or(u32::MAX);
        let whole = backoff.checked_mul(doubled).unwrap_or(backoff_max).min(backoff_max);
        whole.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

fn count_event(kind: Kind, result: &'static str) {
    counter!(metric_names::LINE_EVENTS, "event_type" => kind.as_str(), "result" => result)
        .increment(1);
}

fn count_handled(kind: Kind, result: &'static str) {
    counter!(metric_names::LINE_HANDLED, "event_type" => kind.as_str(), "result" => result)
        .increment(1);
}
