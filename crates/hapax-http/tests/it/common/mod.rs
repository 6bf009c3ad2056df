//! What the tests share.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod fed;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::handler::Handler;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use hapax_core::memory::MemoryStore;
use hapax_core::{
    ClaimRequest, Claimed, Claims, GiveBack, Key, ManualClock, Step, StoreError, Token,
};
use hapax_core::{ClaimView, Watch};
use hapax_http::{Hooks, IdempotencyConfig, IdempotencyEvent, IdempotencyLayer, KeyedRequest};
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tower::ServiceExt;

/// A store in memory and the clock that it goes by.
pub(crate) fn memory() -> (Arc<MemoryStore>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    (Arc::new(MemoryStore::new(clock.clone())), clock)
}

/// The layer over one handler for everything.
pub(crate) fn app<H, T>(store: Arc<dyn Claims>, config: IdempotencyConfig, handler: H) -> Router
where
    H: Handler<T, ()>,
    T: 'static,
{
    Router::new().fallback(handler).layer(IdempotencyLayer::new(store).with_config(config))
}

/// IdempotencyConfig under which a duplicate is told at once.
pub(crate) fn impatient() -> IdempotencyConfig {
    IdempotencyConfig::new().with_wait(Duration::ZERO)
}

pub(crate) fn post(key: &str, body: &'static str) -> Request<Body> {
    Request::post("/orders").header("idempotency-key", key).body(Body::from(body)).unwrap()
}

/// What the layer makes of `post(key, body)`, for tests that act behind its back.
pub(crate) fn keyed(config: &IdempotencyConfig, key: &str, body: &'static str) -> KeyedRequest {
    let (parts, _) = post(key, body).into_parts();
    KeyedRequest::parse(config, &parts, body.as_bytes()).unwrap().unwrap()
}

/// An answer that has arrived whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Arrived {
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
}

/// Sends a request and takes the whole answer, or the error that broke it off.
pub(crate) async fn try_send(app: &Router, request: Request<Body>) -> Result<Arrived, axum::Error> {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await?;
    let trailers = body.trailers().cloned();
    let (status, headers) = (parts.status, parts.headers);
    Ok(Arrived { status, headers, body: body.to_bytes(), trailers })
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Arrived {
    try_send(app, request).await.unwrap()
}

/// Counts how often something ran.
#[derive(Clone, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    /// One more; how many there are now.
    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A handler's door: it says that it is there, and waits to be let through.
#[derive(Clone)]
pub(crate) struct Door {
    here: Arc<Semaphore>,
    open: Arc<Semaphore>,
}

impl Default for Door {
    fn default() -> Self {
        Self { here: Arc::new(Semaphore::new(0)), open: Arc::new(Semaphore::new(0)) }
    }
}

impl Door {
    pub(crate) async fn pass(&self) {
        self.here.add_permits(1);
        self.open.acquire().await.unwrap().forget();
    }

    /// Waits until somebody stands at the door.
    pub(crate) async fn knocked(&self) {
        self.here.acquire().await.unwrap().forget();
    }

    pub(crate) fn let_one_in(&self) {
        self.open.add_permits(1);
    }
}

/// A store whose settles wait at a door.
pub(crate) struct Gated {
    pub(crate) store: Arc<dyn Claims>,
    pub(crate) settles: Door,
}

impl Gated {
    pub(crate) fn new() -> (Arc<Self>, Door) {
        let settles = Door::default();
        (Arc::new(Self { store: memory().0, settles: settles.clone() }), settles)
    }
}

#[async_trait]
impl Claims for Gated {
    async fn claim(&self, key: &Key, ask: &ClaimRequest) -> Result<Claimed, StoreError> {
        self.store.claim(key, ask).await
    }
    async fn extend(&self, key: &Key, token: &Token, lease: Duration) -> Result<Step, StoreError> {
        self.store.extend(key, token, lease).await
    }
    async fn settle(&self, key: &Key, token: &Token, value: Bytes) -> Result<Step, StoreError> {
        self.settles.pass().await;
        self.store.settle(key, token, value).await
    }
    async fn give_back(&self, key: &Key, token: &Token, how: GiveBack) -> Result<Step, StoreError> {
        self.store.give_back(key, token, how).await
    }
    async fn look(&self, key: &Key) -> Result<Option<ClaimView>, StoreError> {
        self.store.look(key).await
    }
    fn watch(&self, key: &Key) -> Watch {
        self.store.watch(key)
    }
}

/// Remembers what it was told.
#[derive(Clone, Default)]
pub(crate) struct Heard(
    Arc<Mutex<Vec<IdempotencyEvent>>>,
    Arc<Mutex<Vec<(IdempotencyEvent, Duration)>>>,
);

impl Heard {
    pub(crate) fn config(&self) -> IdempotencyConfig {
        IdempotencyConfig::new().with_hooks(self.clone())
    }

    pub(crate) fn events(&self) -> Vec<IdempotencyEvent> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn answered(&self) -> Vec<(IdempotencyEvent, Duration)> {
        self.1.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, event: IdempotencyEvent) -> usize {
        self.events().into_iter().filter(|e| *e == event).count()
    }

    /// Waits until it was told so.
    pub(crate) async fn until(&self, event: IdempotencyEvent) {
        let told = async {
            while self.count(event) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(60), told).await;
        assert!(told.is_ok(), "never told {event:?}, but {:?}", self.events());
    }
}

impl Hooks for Heard {
    fn on(&self, event: IdempotencyEvent, _method: &Method) {
        self.0.lock().unwrap().push(event);
    }

    fn answered(&self, outcome: IdempotencyEvent, _method: &Method, took: Duration) {
        self.1.lock().unwrap().push((outcome, took));
    }
}
