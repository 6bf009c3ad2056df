//! `/healthz`, `/readyz`, `/metrics` and `/v1/queues` of every daemon.

use std::net::SocketAddr;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, any, get};
use hapax::Tenant;
use hyper::StatusCode;
use hyper::header::CONTENT_TYPE;
use serde::Serialize;
use tower::ServiceExt;
use utoipa::ToSchema;

use super::boot::Daemon;
use super::listener::{HttpServer, bind};
use super::metrics::exposition;
use super::readiness::Readiness;
use crate::serve::in_process;
use crate::serve::problem::{Problem, ProblemKind};
use crate::settings::ListenAddress;

/// Enough for a scraper, a prober and an operator.
const MAX_ADMIN_CONNECTIONS: usize = 64;
/// Headers that a proxy or a tunnel adds. It may have replaced `Host` by a loopback name.
const FORWARDED: &[&str] = &["forwarded", "via", "x-forwarded-for", "x-real-ip"];

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
    /// Why they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    reason: Option<String>,
}

/// Answers `/healthz`: the process runs.
pub(crate) fn healthz() -> Response {
    json(StatusCode::OK, &HealthDocument { status: "ok" })
}

/// Answers `/readyz`: whether the store and every other component work.
pub(crate) fn readyz(readiness: &Readiness) -> Response {
    let reason = readiness.why_not();
    let ready = reason.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    json(status, &ReadyDocument { ready, reason })
}

fn json(status: StatusCode, document: &impl Serialize) -> Response {
    let body = serde_json::to_string(document).expect("plain fields become JSON");
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

/// `/healthz` and `/readyz`.
pub(crate) fn health_routes(readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(|| async { healthz() }))
        .route(
            "/readyz",
            get(|State(readiness): State<Readiness>| async move { readyz(&readiness) }),
        )
        .with_state(readiness)
}

/// Parts of the server's API, for callers on this machine alone.
#[derive(Clone)]
pub(crate) struct LocalApi(Router);

impl LocalApi {
    /// The API on the daemon's store, for the default tenant.
    pub(crate) fn new(daemon: &Daemon) -> anyhow::Result<Self> {
        let (store, metrics) = (daemon.store.clone(), daemon.metrics.clone());
        in_process::router_for_store(store, Tenant::default(), metrics).map(Self)
    }

    /// Adds `/v1/queues`.
    pub(crate) fn add_queues(self, router: Router) -> Router {
        router.route("/v1/queues/{*rest}", self.route())
    }

    /// Passes requests to the API, which checks `Host` and `Origin` itself. A tunnel or a proxy may
    /// bring the whole world to a loopback address, so forwarded requests are refused.
    pub(crate) fn route(self) -> MethodRouter {
        any(|mut request: Request| async move {
            if FORWARDED.iter().any(|name| request.headers().contains_key(*name)) {
                let detail = "it came through a proxy, and is for this machine alone";
                return Problem::new(ProblemKind::Forbidden, detail).into_response();
            }
            // The API labels its own routes in logs and metrics.
            request.extensions_mut().remove::<MatchedPath>();
            self.0.oneshot(request).await.unwrap_or_else(|never| match never {})
        })
    }
}

impl Daemon {
    /// Serves health and metrics on `--admin`, where it is configured; on loopback also the queues
    /// of `local_api`.
    pub(crate) async fn serve_admin(
        &self,
        listen: Option<&ListenAddress>,
        local_api: Option<LocalApi>,
    ) -> anyhow::Result<Option<SocketAddr>> {
        let Some(listen) = listen else { return Ok(None) };
        let listener = bind("admin", listen).await?;
        let address = listener.local_addr()?;
        let metrics = self.metrics.clone();
        let mut router = health_routes(self.readiness.clone())
            .route("/metrics", get(move || async move { exposition(&metrics) }));
        if let Some(api) = local_api.filter(|_| listen.is_loopback()) {
            router = api.add_queues(router);
        }
        let server = HttpServer::new(router, None, self.timeouts, MAX_ADMIN_CONNECTIONS);
        tokio::spawn(async move { server.accept(listener).await });
        Ok(Some(address))
    }
}
