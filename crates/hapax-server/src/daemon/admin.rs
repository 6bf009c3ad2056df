//! `/healthz`, `/readyz` and `/metrics` of every daemon, and the address of `--admin`.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Serialize;
use utoipa::ToSchema;

use super::boot::Daemon;
use super::listener::{HttpServer, bind};
use super::readiness::Readiness;
use crate::settings::ListenAddress;

/// Enough for a scraper, a prober and an operator.
const MAX_ADMIN_CONNECTIONS: usize = 64;

/// The answer of `/healthz`.
#[derive(Serialize, ToSchema)]
#[schema(as = Health)]
pub(crate) struct HealthDocument {
    #[schema(value_type = String, example = "ok")]
    status: &'static str,
}

/// Whether calls can be answered.
#[derive(Serialize, ToSchema)]
#[schema(as = Ready)]
pub(crate) struct ReadyDocument {
    /// Whether calls can be answered.
    ready: bool,
    /// The part that does not work: `store`, `events`, `ingest` or `sink`; `process` at shutdown.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    component: Option<&'static str>,
    /// Why it does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
    /// The checks that refuse the store, and that `--accept-risk` accepts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>, required = false)]
    accepted_risks: Vec<&'static str>,
}

/// Whether the process lives.
#[utoipa::path(get, path = "/healthz", tag = "system", responses((status = 200, body = HealthDocument, description = "It does")))]
pub(crate) async fn healthz() -> Response {
    json(StatusCode::OK, &HealthDocument { status: "ok" })
}

/// Whether calls can be answered.
#[utoipa::path(get, path = "/readyz", tag = "system", responses(
    (status = 200, body = ReadyDocument, description = "The store answers, and followed jobs are read"),
    (status = 503, body = ReadyDocument, description = "It does not, or the server is shutting down"),
))]
pub(crate) async fn readyz(State(readiness): State<Readiness>) -> Response {
    let (status, component, reason) = match readiness.failure() {
        None => (StatusCode::OK, None, None),
        Some((component, reason)) => {
            (StatusCode::SERVICE_UNAVAILABLE, Some(component), Some(reason))
        }
    };
    let ready = status == StatusCode::OK;
    let accepted_risks = readiness.accepted_risks();
    json(status, &ReadyDocument { ready, component, reason, accepted_risks })
}

fn json(status: StatusCode, document: &impl Serialize) -> Response {
    let body = serde_json::to_string(document).expect("plain fields become JSON");
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// All metrics, for Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "system", responses(
    (status = 200, body = String, content_type = "text/plain", description = "Prometheus text"),
))]
pub(crate) async fn metrics(State(metrics): State<PrometheusHandle>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render()).into_response()
}

/// `/healthz` and `/readyz`.
pub(crate) fn health_routes(readiness: Readiness) -> Router {
    let router = Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz));
    router.with_state(readiness)
}

impl Daemon {
    /// Serves health and metrics on `--admin`, where it is configured; on loopback also `local_routes`.
    pub(crate) async fn serve_admin(
        &self,
        listen: Option<&ListenAddress>,
        local_routes: Router,
    ) -> anyhow::Result<Option<SocketAddr>> {
        let Some(listen) = listen else { return Ok(None) };
        let listener = bind("admin", listen).await?;
        let address = listener.local_addr()?;
        let mut router = Router::new().route("/metrics", get(metrics));
        if listen.is_loopback() {
            router = router.merge(local_routes.with_state(()));
        }
        let router =
            health_routes(self.readiness.clone()).merge(router.with_state(self.metrics.clone()));
        let server = HttpServer::new(router, None, self.timeouts, MAX_ADMIN_CONNECTIONS);
        tokio::spawn(async move { server.accept(listener).await });
        Ok(Some(address))
    }
}
