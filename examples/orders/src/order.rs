use async_trait::async_trait;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{self, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use hapax_http::Keyed;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) item: String,
    pub(crate) cups: i32,
}

/// An order that is made.
#[derive(Serialize)]
pub(crate) struct Order {
    pub(crate) order: i64,
    pub(crate) item: String,
    pub(crate) cups: i32,
}

/// How many orders there are, and the last hundred, the newest first.
#[derive(Serialize)]
pub(crate) struct Orders {
    pub(crate) count: i64,
    pub(crate) orders: Vec<Order>,
}

/// A database of orders.
#[async_trait]
pub(crate) trait Shop: Send + Sync {
    /// Makes the order, or gives the answer that the key has already.
    async fn place(&self, keyed: Keyed, order: NewOrder) -> anyhow::Result<Response>;

    /// What was ordered so far.
    async fn orders(&self) -> anyhow::Result<Orders>;
}

impl NewOrder {
    /// The answer: 201, the order, and where it is.
    pub(crate) fn made(self, order: i64) -> anyhow::Result<http::Response<Bytes>> {
        let made = Order { order, item: self.item, cups: self.cups };
        let response = http::Response::builder()
            .status(StatusCode::CREATED)
            .header(LOCATION, format!("/orders/{order}"))
            .header(CONTENT_TYPE, "application/json");
        Ok(response.body(serde_json::to_vec(&made)?.into())?)
    }
}

/// For the test: ends the process as a crash would, where `ORDERS_DIE_AT` names this point.
pub(crate) fn die_at(point: &str) {
    if std::env::var("ORDERS_DIE_AT").is_ok_and(|wanted| wanted == point) {
        std::process::abort();
    }
}
