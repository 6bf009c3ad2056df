//! The handler that is measured, bare or under the layer.

use std::io::Write;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Bytes;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::post;
use hapax_http::IdempotencyLayer;
use tokio::net::TcpListener;

/// The request body, of the size of a small order.
pub(super) const REQUEST: &str = r#"{"item":"tea","cups":2,"note":"no sugar, please","table":17}"#;
/// The response body.
pub(super) const ANSWER: &str =
    r#"{"id":"order-17","status":"created","total":1290,"currency":"EUR"}"#;

/// The arguments of the hidden `hapax-bench serve-handler`.
#[derive(clap::Args)]
pub(crate) struct HandlerArgs {
    /// The layer's store; without it, the bare handler is served.
    #[arg(long)]
    store: Option<String>,
    /// The address to listen on; the first line of output prints the actual one.
    #[arg(long)]
    listen: SocketAddr,
}

/// Serves until the process is killed.
pub(crate) async fn serve(args: HandlerArgs) -> anyhow::Result<()> {
    let app = match args.store {
        Some(url) => layered(&url).await?,
        None => bare(),
    };
    let listener = TcpListener::bind(args.listen).await?;
    writeln!(std::io::stdout(), "listens on http://{}", listener.local_addr()?)?;
    axum::serve(listener, app).await?;
    Ok(())
}

pub(super) fn bare() -> Router {
    Router::new().route("/orders", post(create_order))
}

/// The handler under the layer with default settings.
pub(super) async fn layered(url: &str) -> anyhow::Result<Router> {
    let store = hapax::open(url, &hapax::StoreConfig::default())?;
    store.ping().await?;
    Ok(bare().layer(IdempotencyLayer::new(store)))
}

async fn create_order(order: Bytes) -> impl IntoResponse {
    let status = if order.is_empty() { StatusCode::BAD_REQUEST } else { StatusCode::CREATED };
    (status, [(CONTENT_TYPE, "application/json")], ANSWER)
}
