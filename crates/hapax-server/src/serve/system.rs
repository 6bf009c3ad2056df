//! `/healthz`, `/readyz`, `/metrics`, and unknown paths and methods.

use axum::extract::{Request, State};
use axum::response::Response;

use super::app::AppState;
use super::problem::{Problem, ProblemKind};
use super::request::body;
use crate::daemon::{self, HealthDocument, ReadyDocument};

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = HealthDocument, description = "It does")))]
pub(crate) async fn healthz() -> Response {
    daemon::healthz()
}

/// Whether calls can be answered.
#[utoipa::path(get, path = "/readyz", tag = "system", responses(
    (status = 200, body = ReadyDocument, description = "The store answers, and followed jobs are read"),
    (status = 503, body = ReadyDocument, description = "It does not, or the server is shutting down"),
))]
pub(crate) async fn readyz(State(app): State<AppState>) -> Response {
    daemon::readyz(&app.readiness)
}

/// All metrics, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "system", responses(
    (status = 200, body = String, content_type = "text/plain", description = "Prometheus text"),
))]
pub(crate) async fn metrics(State(app): State<AppState>) -> Response {
    daemon::exposition(&app.meters)
}

/// Answers an unknown path; an empty key or name in it gets a better reason.
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

/// Answers a known path with a method that it does not take.
pub(crate) async fn no_method(request: Request) -> Problem {
    body::discard(request.into_body()).await;
    Problem::new(ProblemKind::MethodNotAllowed, "`Allow` lists the methods that it takes")
}
