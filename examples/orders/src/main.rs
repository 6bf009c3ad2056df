//! An orders service that creates each order exactly once, however often the client retries and
//! wherever the process dies: claim, order and answer are in one transaction of the service's own
//! database.

mod order;
mod postgres;
mod sqlite;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use anyhow::Context;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use clap::Parser;
use hapax_http::{IdempotencyConfig, KeyedRequest, Problem, ProblemKind};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::order::{NewOrder, Shop};

/// Creates each order exactly once.
#[derive(Parser)]
struct Args {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:8790")]
    listen: String,
    /// Database of orders and claims: sqlite:FILE or postgres://…
    #[arg(long, default_value = "sqlite:orders.db")]
    store: String,
}

/// Time limit for one `place` or `count`. A client that times out can retry safely with the same
/// key.
const LIMIT: Duration = Duration::from_secs(10);

/// Settings for parsing keys and keeping answers: for a day, and separately per `Authorization`.
static CONFIG: LazyLock<IdempotencyConfig> =
    LazyLock::new(|| IdempotencyConfig::new().with_required_key(true));

#[tokio::main]
#[expect(clippy::print_stdout, reason = "it says where it listens")]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let shop: Arc<dyn Shop> = match args.store.strip_prefix("sqlite:") {
        Some(file) => Arc::new(sqlite::SqliteShop::open(file).await?),
        None => Arc::new(postgres::PostgresShop::open(&args.store).await?),
    };
    // Deletes expired claims.
    let claims = hapax::open(&args.store, &hapax::StoreConfig::default())?;
    hapax::sweep_forever(claims, Duration::from_secs(60));

    let app = Router::new().route("/orders", post(create).get(count)).with_state(shop);
    let listener = TcpListener::bind(&args.listen).await?;
    println!("orders on http://{}/orders", listener.local_addr()?);
    Ok(axum::serve(listener, app).await?)
}

async fn create(
    State(shop): State<Arc<dyn Shop>>,
    parts: Parts,
    body: Bytes,
) -> Result<Response, Failed> {
    let keyed = match KeyedRequest::parse(&CONFIG, &parts, &body) {
        Ok(keyed) => keyed.context("a POST has a key")?,
        Err(problem) => return Ok(problem.response().into_response()),
    };
    let order: NewOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return Ok((StatusCode::BAD_REQUEST, error.to_string()).into_response()),
    };
    Ok(timeout(LIMIT, shop.place(keyed, order)).await.context("the limit is over")??)
}

async fn count(State(shop): State<Arc<dyn Shop>>) -> Result<Response, Failed> {
    let count = timeout(LIMIT, shop.count()).await.context("the limit is over")??;
    Ok(Json(serde_json::json!({ "count": count })).into_response())
}

/// The database failed or was too slow. The transaction was rolled back or, if only the commit's
/// acknowledgement was lost, committed: a retry with the same key is safe in both cases.
struct Failed(anyhow::Error);

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    #[expect(clippy::print_stderr, reason = "the log of a small example")]
    fn into_response(self) -> Response {
        eprintln!("{:#}", self.0);
        let detail = "ask again with the same key: the order is made once";
        let problem = Problem::new(ProblemKind::StoreUnavailable, detail);
        problem.response().into_response()
    }
}
