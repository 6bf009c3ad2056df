//! Shared helpers of the tests.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod fed;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::handler::Handler;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use hapax_core::memory::MemoryStore;
use hapax_core::{Claimed, Claims, Key, ManualClock, Ticket};
use hapax_http::{
    Hooks, IdempotencyConfig, IdempotencyEvent as Event, IdempotencyLayer, KeyedRequest,
};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

/// A store in memory, and its clock.
pub(crate) fn memory() -> (Arc<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (Arc::new(MemoryStore::new(clock.clone())), clock)
}

/// The layer in front of one handler for all requests.
pub(crate) fn app<H, T>(store: Arc<dyn Claims>, config: IdempotencyConfig, handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    Router::new().fallback(handler).layer(IdempotencyLayer::new(store).with_config(config))
}

/// The layer in front of a handler that responds with the number of its run.
pub(crate) fn counting_app(store: Arc<dyn Claims>, config: IdempotencyConfig) -> (Router, Runs) {
    let runs = Runs::default();
    let counted = runs.clone();
    (app(store, config, || async move { counted.add().to_string() }), runs)
}

/// The layer in front of a handler that waits at a gate, then responds with this status and the
/// number of its run.
pub(crate) fn gated_app(
    store: Arc<dyn Claims>,
    config: IdempotencyConfig,
    status: StatusCode,
) -> (Router, HandlerGate, Runs) {
    let (gate, runs) = (HandlerGate::default(), Runs::default());
    let (inside, counted) = (gate.clone(), runs.clone());
    let app = app(store, config, move || async move {
        inside.pass().await;
        (status, counted.add().to_string())
    });
    (app, gate, runs)
}

/// A configuration without a wait: duplicates are refused at once.
pub(crate) fn without_wait() -> IdempotencyConfig {
    IdempotencyConfig::new().with_wait(Duration::ZERO)
}

pub(crate) fn post(key: &str, body: &'static str) -> Request<Body> {
    Request::post("/orders").header("idempotency-key", key).body(Body::from(body)).unwrap()
}

/// A request with the key `k` to another path.
pub(crate) fn post_to(path: &str) -> Request<Body> {
    Request::post(path).header("idempotency-key", "k").body(Body::empty()).unwrap()
}

/// The keyed request that the layer reads from `post(key, body)`, for tests that use the store directly.
pub(crate) fn keyed(config: &IdempotencyConfig, key: &str, body: &'static str) -> KeyedRequest {
    let (parts, _) = post(key, body).into_parts();
    KeyedRequest::parse(config, &parts, body.as_bytes()).unwrap().unwrap()
}

/// A response with its complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FullResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl FullResponse {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"].as_u64(), Some(self.status.as_u16().into()));
        problem
    }

    /// The last part of the problem's type.
    pub(crate) fn code(&self) -> String {
        let kind = self.problem()["type"].as_str().unwrap().to_owned();
        kind.strip_prefix("https://hapax.dev/problems/").unwrap().to_owned()
    }

    #[track_caller]
    pub(crate) fn assert_problem(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), &*self.code()), (status, code));
    }
}

/// Sends a request and reads the complete response, or the error that cut it.
pub(crate) async fn try_send(
    app: &Router,
    request: Request<Body>,
) -> Result<FullResponse, axum::Error> {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let (status, headers) = (parts.status, parts.headers);
    Ok(FullResponse { status, headers, body: body.to_bytes(), trailers })
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> FullResponse {
    try_send(app, request).await.unwrap()
}

/// Sends a request on a task of its own.
pub(crate) fn sending(
    app: &Router,
    key: &'static str,
    body: &'static str,
) -> JoinHandle<FullResponse> {
    let app = app.clone();
    tokio::spawn(async move { send(&app, post(key, body)).await })
}

/// Counts runs.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// Adds one, and returns the count.
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// Holds a handler: the handler reports its arrival and waits until it may go on.
#[derive(Clone)]
pub(crate) struct HandlerGate {
    here: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for HandlerGate {
    fn default() -> Self {
        Self { here: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }
}

impl HandlerGate {
    pub(crate) async fn pass(&self) {
        self.here.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until a handler has arrived.
    pub(crate) async fn reached(&self) {
        self.here.acquire().await.unwrap().forget();
    }

    pub(crate) fn release_one(&self) {
        self.open.add_permits(1);
    }
}

/// Claims the key of `post(key, "")` in place of another process.
pub(crate) async fn claim_elsewhere(
    store: &dyn Claims,
    config: &IdempotencyConfig,
    key: &str,
) -> (Key, Ticket) {
    let keyed = keyed(config, key, "");
    match store.claim(keyed.key(), keyed.claim()).await.unwrap() {
        Claimed::Granted { ticket, .. } => (keyed.key().clone(), ticket),
        other => panic!("{other:?}"),
    }
}

/// Records all events.
#[derive(Clone, Default)]
pub(crate) struct RecordedEvents(Arc<Mutex<Vec<Event>>>, Arc<Mutex<Vec<(Event, Duration)>>>);

impl RecordedEvents {
    pub(crate) fn config(&self) -> IdempotencyConfig {
        IdempotencyConfig::new().with_hooks(self.clone())
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn answered(&self) -> Vec<(Event, Duration)> {
        self.1.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, event: Event) -> usize {
        self.events().into_iter().filter(|e| *e == event).count()
    }

    /// Waits until this event was recorded.
    pub(crate) async fn until(&self, event: Event) {
        let told = async {
            while self.count(event) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(60), told).await;
        assert!(told.is_ok(), "never told {event:?}, but {:?}", self.events());
    }
}

impl Hooks for RecordedEvents {
    fn on(&self, event: Event, _method: &Method) {
        self.0.lock().unwrap().push(event);
    }

    fn answered(&self, outcome: Event, _method: &Method, took: Duration) {
        self.1.lock().unwrap().push((outcome, took));
    }
}
