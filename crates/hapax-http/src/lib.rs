//! `Idempotency-Key` for axum, hyper and tonic: a tower layer.
//!
//! The first request with a key runs. Every other one with the same key gets the same answer, byte for
//! byte, whether it comes while the first one runs, a minute later or after a restart. Another request
//! under the same key is refused, and nobody ever sees another caller's answer.
//!
//! ```
//! use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
//! use axum::{Router, body::Body, http::{Request, StatusCode}, routing::post};
//! use hapax_core::memory::MemoryStore;
//! use hapax_http::{IdempotencyLayer, Settings};
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
//! // In earnest: `SqliteStore::open("hapax.db")?`, or Redis, or PostgreSQL.
//! let store = Arc::new(MemoryStore::default());
//! let layer = IdempotencyLayer::new(store, Settings::default());
//! let app: Router = Router::new().route("/orders", post(create_order)).layer(layer);
//!
//! let order = |item: &'static str| {
//!     let request = Request::post("/orders").header("Idempotency-Key", "\"8e03978e\"");
//!     app.clone().oneshot(request.body(Body::from(item)).unwrap())
//! };
//! // Two at once: one order, and both get its answer.
//! let (one, other) = tokio::join!(order("tea"), order("tea"));
//! for response in [one.unwrap(), other.unwrap()] {
//!     assert_eq!(response.status(), StatusCode::CREATED);
//!     let body = axum::body::to_bytes(response.into_body(), 1024).await.unwrap();
//!     assert_eq!(body, "order 1: tea");
//! }
//! // Another one under the same key is a mistake.
//! assert_eq!(order("coffee").await.unwrap().status(), StatusCode::UNPROCESSABLE_ENTITY);
//! assert_eq!(ORDERS.load(Ordering::SeqCst), 1);
//! # }
//! ```
//!
//! # What is promised
//!
//! | where the effect is | promise |
//! |---|---|
//! | in the same SQL transaction as the claim: see [`Keyed`] | exactly once |
//! | elsewhere, [`OnUnknown::Refuse`](hapax_core::OnUnknown) (the default) | at most once for each answer that says so: a crash, a cut, a 502 or 504 become `outcome-unknown`, never a guess; another answered 5xx is the service's word that a retry may run |
//! | elsewhere, [`OnUnknown::TakeOver`](hapax_core::OnUnknown) | at least once; once where the other side honours the key or the fence that it is passed (`Idempotency-Key`, `Hapax-Fence`) |
//!
//! - **Whose key it is** says [`Scope`]; what makes two requests the same, [`FingerprintOf`]; what becomes
//!   of an answer, [`Verdicts`].
//! - **The end of an answer goes out after the store has it**: who has seen a whole one gets it again.
//! - **A first run outlives its connection**: [`IdempotencyLayer::drain`] waits for it.
//! - **Inside a nested axum router** set [`Settings::path`].
//!
//! # How a request goes
//!
//! ```text
//!   service: key? ──no──────────────────────────────────────────► through
//!               │yes
//!   asked: read whole, fingerprint
//!               │
//!   claim ──────┼─ granted ─► run (a task): service ─► source ─► copy ─► held: settle
//!               │                                         └────► feed ─► client
//!               ├─ settled ─► replay
//!               ├─ busy ────► wait, claim again
//!               └─ mismatch, unknown ─► answers: a problem
//! ```

mod answers;
mod asked;
mod body;
mod drain;
mod failpoint;
mod feed;
mod fingerprint;
mod held;
mod hooks;
mod identity;
mod layer;
pub mod problem;
mod replay;
mod run;
mod service;
mod settings;
mod source;
mod traced;
mod transaction;
mod unambiguous;
mod verdict;

pub use body::{Answer, Body, BoxError, Whole};
pub use fingerprint::FingerprintOf;
pub use hooks::{Event, Hooks, Silent};
pub use identity::{InvalidIdempotencyKey, Keyed, Scope, parse_key};
pub use layer::{Idempotency, IdempotencyLayer};
pub use problem::{Problem, ProblemKind};
pub use replay::{keep, not_kept, replay};
pub use settings::{PathOf, Settings};
pub use transaction::settlement;
pub use verdict::{Verdict, Verdicts};
