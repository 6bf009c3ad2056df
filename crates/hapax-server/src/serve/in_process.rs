//! The API on a store that is opened directly, for the command line: a store without a server in
//! front of it (a proxy's, say) answers in the very same way.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use axum::Router;
use hapax::{Options, Store, Tenant};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};

use super::app::App;
use super::request::auth::Access;
use super::router;
use crate::settings::{Settings, Sources};

/// The same on a store that is open already.
pub(crate) fn on(
    store: Arc<dyn Store>,
    tenant: Tenant,
    meters: PrometheusHandle,
) -> anyhow::Result<Router> {
    let settings = Settings::read(&Sources::nothing()?)?;
    Ok(router::new(&App::new(settings, Access::Local(tenant), store, meters)))
}

/// Everything that the server serves, as this tenant.
pub(crate) async fn open(url: &str, tenant: Tenant) -> anyhow::Result<Router> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        // A file that is misspelt would be made, and have nothing in it.
        let path = path.strip_prefix("//").unwrap_or(path);
        ensure!(Path::new(path).exists(), "there is no file {path}");
    }
    let store = hapax::open(url, &Options::default()).await.context("the store")?;
    on(store, tenant, PrometheusBuilder::new().build_recorder().handle())
}
