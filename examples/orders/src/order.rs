use async_trait::async_trait;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{self, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use hapax_http::KeyedRequest;
use serde::Deserialize;
use serde_json::json;

/// What is asked for.
#[derive(Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) item: String,
    pub(crate) cups: i32,
}

/// A database of orders.
#[async_trait]
pub(crate) trait Shop: Send + Sync {
    /// Makes the order, or gives the answer that the key has already.
    async fn place(&self, keyed: KeyedRequest, order: NewOrder) -> anyhow::Result<Response>;

    /// How many orders there are.
    async fn count(&self) -> anyhow::Result<i64>;
}

impl NewOrder {
    /// The answer: 201, the order, and where it is.
    pub(crate) fn made(self, order: i64) -> anyhow::Result<http::Response<Bytes>> {
        let made = json!({ "order": order, "item": self.item, "cups": self.cups });
        let response = http::Response::builder()
            .status(StatusCode::CREATED)
            .header(LOCATION, format!("/orders/{order}"))
            .header(CONTENT_TYPE, "application/json");
        Ok(response.body(made.to_string().into())?)
    }
}

/// For the test: ends the process as a crash would, where `ORDERS_DIE_AT` names this point.
pub(crate) fn die_at(point: &str) {
    if std::env::var("ORDERS_DIE_AT").is_ok_and(|wanted| wanted == point) {
        std::process::abort();
    }
}
