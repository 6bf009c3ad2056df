//! The same handler: bare, under hapax's layer, and under the layer of the crate `idempotent`.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, request::Parts};
use axum::response::IntoResponse;
use axum::routing::post;

/// The request body, the one of `hapax-bench http`.
pub(crate) const REQUEST: &str = r#"{"item":"tea","cups":2,"note":"no sugar, please","table":17}"#;
/// The response body.
pub(crate) const ANSWER: &str =
    r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;

/// The layer in front of the handler.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum LayerChoice {
    None,
    Hapax,
    Idempotent,
}

impl LayerChoice {
    pub(crate) const ALL: [Self; 3] = [Self::None, Self::Hapax, Self::Idempotent];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::None => "bare handler",
            Self::Hapax => "hapax, memory",
            Self::Idempotent => "idempotent 2.0.0, memory",
        }
    }

    /// The handler under the layer, which has its default settings and an empty store.
    pub(crate) fn app(self) -> anyhow::Result<Router> {
        let handler = Router::new().route("/orders", post(create_order));
        Ok(match self {
            Self::None => handler,
            Self::Hapax => {
                let store = Arc::new(hapax_core::memory::MemoryStore::default());
                handler.layer(hapax_http::IdempotencyLayer::new(store))
            }
            Self::Idempotent => {
                let store = idempotent::memory::MemoryStore::builder().try_build()?;
                // hapax's default: a key belongs to the caller in `Authorization`.
                let layer = idempotent::middleware::IdempotencyLayer::new(store).scope(caller);
                handler.layer(layer)
            }
        })
    }
}

fn caller(parts: &Parts) -> Option<String> {
    Some(parts.headers.get("authorization")?.to_str().ok()?.to_owned())
}

async fn create_order(order: Bytes) -> impl IntoResponse {
    let status = if order.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::CREATED };
    (status, [(CONTENT_TYPE, "application/json")], ANSWER)
}
