//! `/healthz`, `/readyz`, `/metrics` and `/v1/queues`: who may see what, and where.
//!
//! | | `/healthz`, `/readyz` | `/metrics` | `/v1/queues` |
//! |---|---|---|---|
//! | the listener, on loopback | yes | to this machine | to this machine |
//! | the listener, elsewhere | yes | no | no |
//! | `--admin`, on loopback | yes | yes | to this machine |
//! | `--admin`, elsewhere | yes | yes | no |

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, any};
use hapax::{Store, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;
use tower::ServiceExt;

use crate::health::Health;
use crate::proxy::admin;
use crate::serve::problem::{Problem, ProblemKind};
use crate::serve::{in_process, router};
use crate::settings::ListenAddress;

/// What proxies and tunnels add, who may have put a loopback name for `Host`.
const FORWARDED: &[&str] = &["forwarded", "via", "x-forwarded-for", "x-real-ip"];
const QUEUES: &str = "/v1/queues/{*rest}";

/// What `--admin` serves.
pub(super) fn router(
    listen: &ListenAddress,
    health: &Health,
    store: &Arc<dyn Store>,
    meters: &PrometheusHandle,
) -> anyhow::Result<Router> {
    let router = admin::router(health.clone(), meters.clone());
    if !listen.is_loopback() {
        return Ok(router);
    }
    Ok(router.route(QUEUES, api(store, meters)?))
}

/// What the listener serves beside webhooks. A tunnel or a proxy may bring the whole world to a
/// loopback address: there the server's own API answers, which looks at `Host` and `Origin`, and what
/// says that it was forwarded is refused.
pub(super) fn beside(
    webhooks: Router,
    listen: &ListenAddress,
    health: &Health,
    store: &Arc<dyn Store>,
    meters: &PrometheusHandle,
) -> anyhow::Result<Router> {
    let router = router::with_common_layers(webhooks.merge(admin::probes(health.clone())));
    if !listen.is_loopback() {
        return Ok(router);
    }
    let api = api(store, meters)?;
    Ok(router.route("/metrics", api.clone()).route(QUEUES, api))
}

/// The server's API on this store; of its own it does what it does everywhere, logging included.
fn api(store: &Arc<dyn Store>, meters: &PrometheusHandle) -> anyhow::Result<MethodRouter> {
    let api = in_process::router_for_store(store.clone(), Tenant::default(), meters.clone())?;
    let pass = |mut request: Request| async move {
        if FORWARDED.iter().any(|name| request.headers().contains_key(*name)) {
            let detail = "it came through a proxy, and is for this machine alone";
            return Problem::new(ProblemKind::Forbidden, detail).into_response();
        }
        // Its routes have names of their own, in logs and metrics.
        request.extensions_mut().remove::<MatchedPath>();
        api.oneshot(request).await.unwrap_or_else(|never| match never {})
    };
    Ok(any(pass))
}
