//! `/healthz`, `/readyz`, `/metrics`, and the answers where there is no route.

use axum::extract::{Request, State};
use axum::response::Response;
use hyper::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;

use super::app::AppState;
use super::problem::{Problem, ProblemKind};
use super::request::body;
use super::response::json_response;
use crate::measure;

/// Whether the process lives.
#[derive(Serialize, ToSchema)]
pub(crate) struct Health {
    #[schema(value_type = String, example = "ok")]
    status: &'static str,
}

/// Whether calls can be answered.
#[derive(Serialize, ToSchema)]
pub(crate) struct Ready {
    /// True where they can.
    ready: bool,
    /// Why not, where they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = Health, description = "It does")))]
pub(crate) async fn healthz() -> Response {
    json_response(StatusCode::OK, &Health { status: "ok" })
}

/// Whether calls can be answered.
#[utoipa::path(get, path = "/readyz", tag = "system", responses(
    (status = 200, body = Ready, description = "The store answers, and followed jobs are read"),
    (status = 503, body = Ready, description = "It does not, or the server is shutting down"),
))]
pub(crate) async fn readyz(State(app): State<AppState>) -> Response {
    let reason = app.why_not();
    let ready = reason.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json_response(status, &Ready { ready, reason })
}

/// Everything that is measured, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "system", responses(
    (status = 200, body = String, content_type = "text/plain", description = "Prometheus text"),
))]
pub(crate) async fn metrics(State(app): State<AppState>) -> Response {
    measure::exposition(&app.meters)
}

/// A path that leads nowhere; an empty key is one that was meant.
pub(crate) async fn no_route(request: Request) -> Problem {
    let path = request.uri().path().to_owned();
    body::discard(request.into_body()).await;
    let parts: Vec<&str> = path.split('/').collect();
    let text = match parts[..] {
        ["", "v1", "locks" | "records", ""] => "key is empty; it takes 1 to 255 bytes",
        ["", "v1", "commands", "", _] | ["", "v1", "operator", "commands", "", _] => {
            "operation is empty; it takes 1 to 255 bytes"
        }
        ["", "v1", "inbox", "", _] => "consumer is empty; it takes 1 to 255 bytes",
        ["", "v1", "queues", "", ..] => "queue is empty; it takes 1 to 255 bytes",
        ["", "v1", "inbox", _, ""]
        | ["", "v1", "commands", _, ""]
        | ["", "v1", "operator", "commands", _, ""] => "key is empty; it takes 1 to 255 bytes",
        _ => {
            return Problem::new(
                ProblemKind::NotFound,
                "/openapi.json lists the paths that there are",
            );
        }
    };
    Problem::invalid(text)
}

/// A path that there is, with a method that it does not take.
pub(crate) async fn no_method(request: Request) -> Problem {
    body::discard(request.into_body()).await;
    Problem::new(ProblemKind::MethodNotAllowed, "`Allow` lists the methods that it takes")
}
