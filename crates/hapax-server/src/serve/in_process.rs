//! The API on a store that is opened directly: the command line and the admin listeners use it
//! where no `hapax serve` runs, for example on a proxy's store.

use std::sync::Arc;

use axum::Router;
use hapax::{Store, Tenant};
use metrics_exporter_prometheus::PrometheusHandle;

use super::app::AppState;
use super::request::auth::AccessPolicy;
use super::router;
use crate::daemon::Readiness;
use crate::settings::{CommandSettings, ServeSettings, SettingSources};

/// The API's router on a store that is already open; every request acts as `tenant`.
pub(crate) fn router_for_store(
    store: Arc<dyn Store>,
    tenant: Tenant,
    meters: PrometheusHandle,
) -> anyhow::Result<Router> {
    let settings = ServeSettings::read(&SettingSources::defaults()?)?;
    Ok(router::new(&AppState::new(
        settings,
        AccessPolicy::LocalOnly(tenant),
        store,
        meters,
        Readiness::default(),
    )))
}
