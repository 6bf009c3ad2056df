//! `/healthz`, `/readyz`, `/metrics` and, on loopback, `/v1/queues`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State as Given};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use hapax::Store;
use hapax_relay::SinkHealth;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::ServiceExt;

use crate::health::Health;
use crate::measure;
use crate::serve::in_process;

/// Both ends.
#[derive(Clone)]
pub(super) struct State {
    pub(super) store: Health,
    pub(super) sink: watch::Receiver<SinkHealth>,
}

/// The queues of the store that is drained, as the server shows them.
pub(super) fn queues(store: Arc<dyn Store>, meters: PrometheusHandle) -> anyhow::Result<Router> {
    in_process::router_for_store(store, hapax::Tenant::default(), meters)
}

pub(super) fn router(state: State, meters: PrometheusHandle, queues: Option<Router>) -> Router {
    let router = Router::new()
        .route("/healthz", get(|| async { answer(StatusCode::OK, &json!({ "alive": true })) }))
        .route("/readyz", get(ready))
        .with_state(state)
        .route("/metrics", get(move || async move { measure::exposition(&meters) }));
    let Some(queues) = queues else { return router };
    // The rest of the API is the server's.
    let pass = |request: Request| async move {
        queues.oneshot(request).await.unwrap_or_else(|never| match never {})
    };
    router.route("/v1/queues/{*rest}", any(pass))
}

async fn ready(Given(state): Given<State>) -> Response {
    let sink = match &*state.sink.borrow() {
        SinkHealth::Up => None,
        SinkHealth::Down(reason) => Some(reason.clone().into_owned()),
    };
    match state.store.why_not().or(sink) {
        None => answer(StatusCode::OK, &json!({ "ready": true })),
        Some(reason) => {
            let json = json!({ "ready": false, "reason": reason });
            answer(StatusCode::SERVICE_UNAVAILABLE, &json)
        }
    }
}

fn answer(status: StatusCode, json: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json.to_string()).into_response()
}
