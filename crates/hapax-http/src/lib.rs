//! `Idempotency-Key` for axum, hyper and tonic: a tower layer.
//!
//! The first request with a key runs. Every other one with the same key gets the same answer, byte for
//! byte, whether it comes while the first one runs, a minute later or after a restart. Another request
//! under the same key is refused, and nobody ever sees another caller's answer.
//!
//! ```
//! use std::sync::Arc;
//! use axum::{Router, routing::post};
//! use hapax_core::memory::MemoryStore;
//! use hapax_http::{IdempotencyLayer, Settings};
//! # use {axum::body::Body, axum::http::Request, tower::ServiceExt};
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//!
//! let store = Arc::new(MemoryStore::default());
//! let app: Router = Router::new()
//!     .route("/orders", post(|| async { "order 17" }))
//!     .layer(IdempotencyLayer::new(store, Settings::default()));
//!
//! # for replayed in [None, Some("true")] {
//! # let request = Request::post("/orders").header("Idempotency-Key", "k1").body(Body::empty());
//! # let response = app.clone().oneshot(request.unwrap()).await.unwrap();
//! # assert_eq!(response.status(), 200);
//! # let header = response.headers().get("idempotent-replayed");
//! # assert_eq!(header.map(|h| h.to_str().unwrap()), replayed);
//! # }}
//! ```
//!
//! Where the effect is in a database of yours, let its own transaction carry the claim instead: see
//! [`Keyed`].

mod answers;
mod asked;
mod body;
mod drain;
mod feed;
mod fingerprint;
mod held;
mod hooks;
mod identity;
mod layer;
pub mod meters;
mod problem;
mod replay;
mod run;
mod service;
mod settings;
mod source;
mod unambiguous;
mod verdict;

pub use body::{Answer, Body, BoxError, Whole};
pub use fingerprint::FingerprintOf;
pub use hooks::{Event, Hooks, Silent};
pub use identity::{InvalidIdempotencyKey, Keyed, Scope, parse_key};
pub use layer::{Idempotency, IdempotencyLayer};
pub use problem::Problem;
pub use replay::{keep, not_kept, replay};
pub use settings::{PathOf, Settings};
pub use verdict::{Verdict, Verdicts};
