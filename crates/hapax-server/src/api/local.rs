//! The API on a store that is opened directly: the command line and the admin listeners use it
//! where no `hapax serve` runs, for example on a proxy's store.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::http::Uri;
use axum::routing::{MethodRouter, any};
use hapax::activity::random_node_name;
use hapax::queue::QueueName;
use hapax::{Store, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
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
    let (readiness, node) = (Readiness::default(), random_node_name("local").into());
    Ok(router(&AppState::new(settings, access, store, metrics, readiness, node)))
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
        let router = Router::new().route("/v1/queues", self.route());
        router.route("/v1/queues/{*rest}", self.route())
    }

    /// `/v1/queues`, where the first segment `alias` means this queue.
    pub(crate) fn queues_with_alias(&self, alias: &'static str, queue: &QueueName) -> Router {
        let queue: String = utf8_percent_encode(queue.as_str(), NON_ALPHANUMERIC).collect();
        let rename = move |mut request: Request| {
            if let Some(uri) = rename_queue(request.uri(), alias, &queue) {
                *request.uri_mut() = uri;
            }
            request
        };
        let api = self.route().layer(tower::util::MapRequestLayer::new(rename));
        Router::new().route("/v1/queues/{*rest}", api)
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

/// The same address with another queue; `None` where its queue is not `alias`.
fn rename_queue(uri: &Uri, alias: &str, queue: &str) -> Option<Uri> {
    let path_and_query = uri.path_and_query()?.as_str();
    let rest = path_and_query.strip_prefix("/v1/queues/")?.strip_prefix(alias)?;
    let is_whole = rest.is_empty() || rest.starts_with(['/', '?']);
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("/v1/queues/{queue}{rest}").parse().ok()?);
    is_whole.then(|| Uri::from_parts(parts).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_of_a_queue_is_a_whole_segment() {
        let renamed = |path: &str| {
            let uri = rename_queue(&path.parse().expect("a path"), "line", "line%3A1f");
            uri.map(|uri| uri.to_string())
        };
        assert_eq!(renamed("/v1/queues/line").as_deref(), Some("/v1/queues/line%3A1f"));
        let dead = renamed("/v1/queues/line/dead?limit=1");
        assert_eq!(dead.as_deref(), Some("/v1/queues/line%3A1f/dead?limit=1"));
        for other in ["/v1/queues/lines", "/v1/queues/outbox/line", "/v1/queues/line:1f"] {
            assert_eq!(renamed(other), None, "{other}");
        }
    }
}
