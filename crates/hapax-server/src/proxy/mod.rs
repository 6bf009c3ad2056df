//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► gateway (which route) ─► Idempotency (hapax-http) ─► upstream (headers, client)
//!     TLS, timeouts                        claims, replays             pool, timeouts, tunnels
//! ```

mod answer;
mod banner;
mod client;
mod failure;
mod fit;
mod forward;
mod gateway;
mod quiet;
mod route;
mod tls;
mod tunnel;
mod upstream;

use std::process::ExitCode;
use std::sync::Arc;

use hapax::Claims;

use crate::daemon::{BoxError, Daemon, DaemonSettings, IoTimeouts};
use crate::settings::{CommandSettings, ProxySettings, SettingFlags, SettingSources};
use fit::Fit;
use gateway::Gateway;
use upstream::Manner;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ProxySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ProxySettings::read(&sources)?;
    let routes = route::routes(&settings)?;
    let daemon = Daemon::boot(&sources, daemon_settings(&settings)).await?;
    let admin = daemon.serve_admin(settings.admin.as_ref(), None).await?;

    let tls_upstream = routes.iter().any(|route| route.target.is_tls());
    let client = client::new(&settings, tls_upstream)?;
    let manner = Manner {
        http2: settings.upstream_http2,
        host: settings.host,
        trust_forwarded: settings.trust_forwarded,
    };
    let fit: Arc<dyn Claims> =
        Arc::new(Fit { store: daemon.store.clone(), health: daemon.readiness.clone() });
    let gateway = Gateway::new(&routes, &fit, &client, manner, settings.body_timeout);
    let tls = tls::for_clients(&settings)?;
    banner::print(&settings, &routes, daemon.address()?, admin);
    let stop = async || gateway.drain().await;
    daemon.serve(gateway.clone(), tls, settings.shutdown_timeout.0, stop).await?;
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
