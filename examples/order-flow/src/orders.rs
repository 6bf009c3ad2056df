//! The orders service: claim, order, message and answer in one transaction.

use std::sync::{Arc, LazyLock};

use anyhow::{Context, bail};
use axum::body::Body;
use axum::extract::State;
use axum::http::request::Parts;
use axum::http::{self, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Router, serve as serve_http};
use bytes::Bytes;
use deadpool_postgres::Pool;
use hapax::postgres::HapaxTransaction;
use hapax::queue::QueueItem;
use hapax::{Step, Tenant};
use hapax_http::{IdempotencyConfig, KeyedRequest};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;

use crate::{TOPIC, open_database};

static CONFIG: LazyLock<IdempotencyConfig> =
    LazyLock::new(|| IdempotencyConfig::new().with_required_key(true));

const TABLE: &str = "CREATE TABLE IF NOT EXISTS orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL)";

#[derive(Deserialize)]
struct NewOrder {
    item: String,
}

/// Serves until the process is killed.
pub(crate) async fn serve(listen: &str, url: &str) -> anyhow::Result<()> {
    let pool = Arc::new(open_database(url, TABLE).await?);
    let app = Router::new().route("/orders", post(create)).with_state(pool);
    Ok(serve_http(TcpListener::bind(listen).await?, app).await?)
}

async fn create(State(pool): State<Arc<Pool>>, parts: Parts, body: Bytes) -> Response {
    match place(&pool, &parts, &body).await {
        Ok(response) => response,
        // The transaction was rolled back or, if only the commit's acknowledgement was lost,
        // committed: a retry with the same key is safe in both cases.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn place(pool: &Pool, parts: &Parts, body: &Bytes) -> anyhow::Result<Response> {
    let keyed = match KeyedRequest::parse(&CONFIG, parts, body) {
        Ok(keyed) => keyed.context("a POST has a key")?,
        Err(problem) => return Ok(problem.response().into_response()),
    };
    let Ok(order) = serde_json::from_slice::<NewOrder>(body) else {
        return Ok(StatusCode::BAD_REQUEST.into_response());
    };
    let mut client = pool.get().await?;
    let mut tx = client.transaction().await?;
    let claimed = tx.hapax().claim(keyed.key(), keyed.claim()).await?;
    let (ticket, _attempt) = match KeyedRequest::granted(claimed) {
        Ok(granted) => granted,
        Err(answer) => return Ok(answer.into_response()),
    };

    let insert = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
    let id: i64 = tx.query_one(insert, &[&order.item]).await?.try_get(0)?;
    let placed = json!({"order": id, "item": order.item}).to_string();
    // The message's id is generated here; the consumer's inbox deduplicates by this id.
    let message =
        QueueItem::new(&Tenant::default(), TOPIC, placed.clone()).key(&format!("order-{id}"));
    tx.hapax().enqueue(&message).await?;

    let mut answer = http::Response::builder().status(StatusCode::CREATED).body(placed.into())?;
    let Some(kept) = KeyedRequest::settled_value(&CONFIG, &mut answer) else {
        bail!("a 201 is kept")
    };
    match tx.hapax().settle(keyed.key(), &ticket.token, kept).await? {
        Step::Done(_) => tx.commit().await?,
        Step::Lost => bail!("the order took longer than its claim is remembered"),
    }
    Ok(answer.map(Body::from))
}
