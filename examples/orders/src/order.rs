use async_trait::async_trait;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{self, StatusCode};
use axum::response::Response;
use bytes::Bytes;
use hapax_http::KeyedRequest;
use serde::Deserialize;
use serde_json::json;

/// The JSON body of `POST /orders`.
#[derive(Deserialize)]
pub(crate) struct NewOrder {
    pub(crate) item: String,
    pub(crate) cups: i32,
}

/// A database that holds the orders and the claims on their keys.
#[async_trait]
pub(crate) trait Shop: Send + Sync {
    /// Creates the order, or returns the stored answer if the key is already settled.
    async fn place(&self, keyed: KeyedRequest, order: NewOrder) -> anyhow::Result<Response>;

    /// The number of orders in the database.
    async fn count(&self) -> anyhow::Result<i64>;
}

impl NewOrder {
    /// The response to a new order: 201, `Location`, and the order as JSON.
    pub(crate) fn made(self, order: i64) -> anyhow::Result<http::Response<Bytes>> {
        let made = json!({ "order": order, "item": self.item, "cups": self.cups });
        let response = http::Response::builder()
            .status(StatusCode::CREATED)
            .header(LOCATION, format!("/orders/{order}"))
            .header(CONTENT_TYPE, "application/json");
        Ok(response.body(made.to_string().into())?)
    }
}

/// Crash point for the tests: aborts the process if `ORDERS_DIE_AT` names this point.
pub(crate) fn die_at(point: &str) {
    example_common::abort_if("ORDERS_DIE_AT", point);
}
