//! The API on a store that is opened directly: the command line and the admin listeners use it
//! where no `hapax serve` runs, for example on a proxy's store.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use axum::Router;
use hapax::{Store, StoreConfig, Tenant};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::app::AppState;
use super::request::auth::AccessPolicy;
use super::router;
use crate::daemon::Readiness;
use crate::settings::{CommandSettings, ServeSettings, SettingSources};

/// The API on an open store, as this tenant.
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

/// Opens a store and returns the API on it, as this tenant.
pub(crate) async fn open_router(url: &str, tenant: Tenant) -> anyhow::Result<Router> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        // SQLite would create a file whose name is misspelt, and the API would show an empty store.
        let path = path.strip_prefix("//").unwrap_or(path);
        ensure!(Path::new(path).exists(), "there is no file {path}");
    }
    let store = hapax::open(url, &StoreConfig::default()).await.context("the store")?;
    router_for_store(store, tenant, PrometheusBuilder::new().build_recorder().handle())
}
