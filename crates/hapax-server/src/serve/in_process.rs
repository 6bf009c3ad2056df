//! The API on a store that is opened directly, for the command line: a store without a server in
//! front of it (a proxy's, say) answers in the very same way.

use std::path::Path;

use anyhow::{Context, ensure};
use axum::Router;
use hapax::{Options, Tenant};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::app::App;
use super::auth::Access;
use super::router;
use crate::settings::{Settings, Sources};

/// Everything that the server serves, as this tenant.
pub(crate) async fn open(url: &str, tenant: Tenant) -> anyhow::Result<Router> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        // A file that is misspelt would be made, and have nothing in it.
        let path = path.strip_prefix("//").unwrap_or(path);
        ensure!(Path::new(path).exists(), "there is no file {path}");
    }
    let settings = Settings::read(&Sources::nothing()?)?;
    let store = hapax::open(url, &Options::default()).await.context("the store")?;
    let meters = PrometheusBuilder::new().build_recorder().handle();
    Ok(router::new(&App::new(settings, Access::Local(tenant), store, meters)))
}
