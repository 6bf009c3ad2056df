//! The two routes that `hapax check` asks of a service, for axum.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{Stream, stream};
use serde::Deserialize;
use serde_json::{Value, json};

/// The response that a request asks for.
#[derive(Deserialize)]
#[serde(default)]
struct Order {
    status: u16,
    delay_ms: u64,
    size: usize,
    binary: bool,
    stream: bool,
}

impl Default for Order {
    fn default() -> Self {
        Self { status: 201, delay_ms: 0, size: 16, binary: false, stream: false }
    }
}

type Executions = Arc<AtomicU64>;

async fn create_order(State(executions): State<Executions>, Json(order): Json<Order>) -> Response {
    let run = executions.fetch_add(1, Relaxed);
    tokio::time::sleep(Duration::from_millis(order.delay_ms)).await;
    let bytes = Bytes::from(vec![if order.binary { 0xff } else { b'x' }; order.size]);
    let body = match order.stream {
        true => Body::from_stream(slowly(bytes)),
        false => Body::from(bytes),
    };
    let status = StatusCode::from_u16(order.status).unwrap_or(StatusCode::CREATED);
    (status, [("x-run", run.to_string())], body).into_response()
}

/// The bytes in four parts, so that nobody knows their length before the end.
fn slowly(bytes: Bytes) -> impl Stream<Item = io::Result<Bytes>> {
    let part = bytes.len() / 4 + 1;
    stream::unfold(bytes, move |mut rest| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let next = rest.split_to(part.min(rest.len()));
        (!next.is_empty()).then_some((Ok(next), rest))
    })
}

async fn count(State(executions): State<Executions>) -> Json<Value> {
    Json(json!({"executions": executions.load(Relaxed)}))
}

/// The routes, without any protection against duplicates: put your own layer around them.
pub fn routes() -> Router {
    Router::new()
        .route("/orders", post(create_order))
        .route("/orders/other-path", post(create_order))
        .route("/executions", get(count))
        .with_state(Executions::default())
}
