//! `/healthz`, `/readyz` and `/metrics`, on an address of their own.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::{Value, json};

use crate::health::Health;
use crate::measure;

pub(crate) fn router(health: Health, meters: PrometheusHandle) -> Router {
    probes(health).route("/metrics", get(move || async move { measure::exposition(&meters) }))
}

/// `/healthz` and `/readyz` alone.
pub(crate) fn probes(health: Health) -> Router {
    Router::new()
        .route("/healthz", get(|| async { answer(StatusCode::OK, &json!({ "alive": true })) }))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn ready(State(health): State<Health>) -> Response {
    match health.why_not() {
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
