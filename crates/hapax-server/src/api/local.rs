//! The API on a store that is opened directly: the command line and the admin listeners use it
//! where no `hapax serve` runs, for example on a proxy's store.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::routing::{MethodRouter, any};
use hapax::{Store, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;
use tower::ServiceExt;

use super::{AccessPolicy, AppState, router};
use crate::daemon::{Daemon, Readiness};
use crate::settings::{CommandSettings, ServeSettings, SettingSources};

/// The API's router on a store that is already open; every request acts as `tenant`.
pub(crate) fn router_for_store(
    store: Arc<dyn Store>,
    tenant: Tenant,
    metrics: PrometheusHandle,
) -> anyhow::Result<Router> {
    let settings = ServeSettings::read(&SettingSources::defaults()?)?;
    let access = AccessPolicy::LocalOnly(tenant);
    Ok(router(&AppState::new(settings, access, store, metrics, Readiness::default())))
}

/// Parts of the API on a daemon's store, for callers on this machine alone.
#[derive(Clone)]
pub(crate) struct LocalApi(Router);

impl LocalApi {
    /// The API acts for the default tenant.
    pub(crate) fn new(daemon: &Daemon) -> anyhow::Result<Self> {
        let (store, metrics) = (daemon.store.clone(), daemon.metrics.clone());
        router_for_store(store, Tenant::default(), metrics).map(Self)
    }

    /// `/v1/queues`.
    pub(crate) fn queues(&self) -> Router {
        Router::new().route("/v1/queues/{*rest}", self.route())
    }

    /// Passes requests to the API, which itself refuses foreign hosts, other sites and forwarded
    /// requests.
    pub(crate) fn route(&self) -> MethodRouter {
        let api = self.0.clone();
        any(|mut request: Request| async move {
            // The API labels its own routes in logs and metrics.
            request.extensions_mut().remove::<MatchedPath>();
            api.oneshot(request).await.unwrap_or_else(|never| match never {})
        })
    }
}
