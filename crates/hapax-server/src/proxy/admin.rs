//! `/healthz`, `/readyz` and `/metrics`, on an address of their own.

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hapax::meters;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::{Value, json};

use super::failure::UPSTREAM_FAILURES;
use super::health::{Health, Standing};

/// Starts measuring.
pub(crate) fn meters() -> anyhow::Result<PrometheusHandle> {
    let builder =
        meters::HISTOGRAMS.iter().try_fold(PrometheusBuilder::new(), |builder, name| {
            builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), meters::BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    meters::describe();
    metrics::describe_counter!(
        UPSTREAM_FAILURES,
        "Upstreams that gave no answer, by route and reason"
    );
    Ok(handle)
}

pub(crate) fn router(health: Health, meters: PrometheusHandle) -> Router {
    Router::new()
        .route("/healthz", get(|| async { answer(StatusCode::OK, &json!({ "alive": true })) }))
        .route("/readyz", get(ready))
        .with_state(health)
        .route("/metrics", get(move || async move { exposition(&meters) }))
}

async fn ready(State(health): State<Health>) -> Response {
    let reason = match health.standing() {
        Standing::Ready => return answer(StatusCode::OK, &json!({ "ready": true })),
        Standing::Down(reason) => format!("the store gives no answer: {reason}"),
        Standing::Stopping => "the proxy is shutting down".to_owned(),
    };
    answer(StatusCode::SERVICE_UNAVAILABLE, &json!({ "ready": false, "reason": reason }))
}

fn answer(status: StatusCode, json: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], json.to_string()).into_response()
}

fn exposition(meters: &PrometheusHandle) -> Response {
    meters.run_upkeep();
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], meters.render()).into_response()
}
