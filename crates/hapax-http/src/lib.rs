//! `Idempotency-Key` for axum, hyper and tonic: a tower layer.
//!
//! The first request with a key runs. Every retry with the same key gets the same response, byte for
//! byte, whether it comes while the first one runs, a minute later or after a restart. A different
//! request under the same key is refused, and no caller ever gets another caller's response.
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use hapax_core::memory::MemoryStore;
//! use hapax_http::IdempotencyLayer;
//! use tower::ServiceExt;
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//!
//! static ORDERS: AtomicU32 = AtomicU32::new(0);
//!
//! async fn create_order(item: String) -> (StatusCode, String) {
//!     let id = ORDERS.fetch_add(1, Ordering::SeqCst) + 1;
//!     (StatusCode::CREATED, format!("order {id}: {item}"))
//! }
//!
//! // In production: `SqliteStore::open("hapax.db")?`, or Redis, or PostgreSQL.
//! let store = Arc::new(MemoryStore::default());
//! let layer = IdempotencyLayer::new(store);
//! let app: Router = Router::new().route("/orders", post(create_order)).layer(layer);
//!
//! let order = |item: &'static str| {
//!     let request = Request::post("/orders").header("Idempotency-Key", "\"8e03978e\"");
//!     app.clone().oneshot(request.body(Body::from(item)).unwrap())
//! };
//! // Two at once: one order, and both get its response.
//! let (one, other) = tokio::join!(order("tea"), order("tea"));
//! for response in [one.unwrap(), other.unwrap()] {
//!     assert_eq!(response.status(), StatusCode::CREATED);
//!     let body = axum::body::to_bytes(response.into_body(), 1024).await.unwrap();
//!     assert_eq!(body, "order 1: tea");
//! }
//! // A different order under the same key is refused.
//! assert_eq!(order("coffee").await.unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY);
//! assert_eq!(ORDERS.load(Ordering::SeqCst), 1);
//! # }
//! ```
//!
//! # Guarantees
//!
//! | where the effect is | guarantee |
//! |---|---|
//! | in the same SQL transaction as the claim: see [`KeyedRequest`] | exactly once |
//! | elsewhere, [`OnUnknown::Refuse`](hapax_core::OnUnknown) (the default) | at most once for each response that is kept: a crash, a cut connection, a 502 or a 504 become `outcome-unknown`; after another 5xx a retry may run |
//! | elsewhere, [`OnUnknown::TakeOver`](hapax_core::OnUnknown) | at least once; once where the other side honours the key or the fence that it is passed (`Idempotency-Key`, `Hapax-Fence`) |
//!
//! - **[`CallerScope`]** identifies the caller of a key, **[`FingerprintOf`]** what makes two requests
//!   the same, **[`Verdicts`]** what becomes of a response.
//! - **The end of a response is sent after the store has it**: a client that received the complete
//!   response can rely on getting it again.
//! - **A first run outlives its connection**: [`IdempotencyLayer::drain`] waits for it.
//! - **Inside a nested axum router** set [`IdempotencyConfig::with_path`].
//!
//! # The way of a request
//!
//! ```text
//!   service: key? ──no──────────────────────────────────────────► inner service
//!               │yes
//!   request: caller, operation, key; read the body, fingerprint
//!               │
//!   claim ──────┼─ granted ─► first_run: service ─► reader ─► copy ─► claim_guard: settle
//!               │             (attached_run)          └────► channel ─► client
//!               ├─ settled ─► replay
//!               ├─ busy ────► wait, claim again
//!               └─ mismatch, unknown ─► problem
//! ```

#[doc = include_str!("../docs/idempotency-key.md")]
pub mod guide {}

mod attached_run;
mod body;
mod claim_guard;
mod config;
mod fingerprint;
mod first_run;
mod future;
mod grpc;
mod json_cost;
mod layer;
mod limits;
pub mod problem;
mod replay;
mod request;
mod service;

pub use body::{BoxError, FullBody, LayerBody, RequestBody, ResponseBody};
pub use config::{Hooks, IdempotencyConfig, IdempotencyEvent, NoHooks, Verdict, Verdicts};
pub use fingerprint::FingerprintOf;
pub use future::ResponseFuture;
pub use json_cost::json_cost;
pub use layer::IdempotencyLayer;
pub use limits::{MemoryBudget, OverloadLimits, ReservedBuffer, ReservedMemory};
pub use problem::{Problem, ProblemKind};
pub use replay::{capture, replay, tombstone};
pub use request::{CallerScope, InvalidIdempotencyKey, KeyedRequest, parse_key};
pub use service::Idempotency;
