//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► router (which route) ─► Idempotency (hapax-http) ─► upstream_service (headers, client)
//!     TLS, timeouts                       claims, replays             pool, timeouts, tunnels
//! ```

mod banner;
mod client;
mod forward;
mod health_gated_claims;
mod idle_timeout;
mod route;
mod router;
mod tls;
mod tunnel;
mod upstream_body;
mod upstream_failure;
mod upstream_service;

use std::process::ExitCode;
use std::sync::Arc;

use hapax::Claims;

use crate::daemon::{BoxError, Daemon, DaemonSettings, IoTimeouts};
use crate::settings::{CommandSettings, ProxySettings, SettingFlags, SettingSources};
use health_gated_claims::HealthGatedClaims;
use router::ProxyRouter;
use upstream_service::ForwardOptions;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ProxySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ProxySettings::read(&sources)?;
    let routes = route::routes(&settings)?;
    let daemon = Daemon::boot(&sources, daemon_settings(&settings)).await?;
    let admin = daemon.serve_admin(settings.admin.as_ref(), None).await?;

    let tls_upstream = routes.iter().any(|route| route.target.is_tls());
    let client = client::new(&settings, tls_upstream)?;
    let forward = ForwardOptions {
        http2: settings.upstream_http2,
        host: settings.host,
        trust_forwarded: settings.trust_forwarded,
    };
    let claims: Arc<dyn Claims> = Arc::new(HealthGatedClaims {
        store: daemon.store.clone(),
        readiness: daemon.readiness.clone(),
    });
    let router = ProxyRouter::new(&routes, &claims, &client, forward, settings.body_timeout);
    let tls = tls::for_clients(&settings)?;
    banner::print(&settings, &routes, daemon.address()?, admin);
    let stop = async || router.drain().await;
    daemon.serve(router.clone(), tls, settings.shutdown_timeout.0, stop).await?;
    Ok(ExitCode::SUCCESS)
}

fn daemon_settings(settings: &ProxySettings) -> DaemonSettings<'_> {
    DaemonSettings {
        log: settings.log,
        log_level: settings.log_level,
        store: &settings.store,
        store_timeout: settings.store_timeout,
        redis_verbatim: None,
        sweep_interval: settings.sweep_interval,
        listen: Some(&settings.listen),
        timeouts: IoTimeouts { header: settings.header_timeout, idle: settings.idle_timeout },
        max_connections: settings.max_connections,
    }
}
