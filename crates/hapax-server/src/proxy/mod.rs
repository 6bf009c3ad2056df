//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► router (which route) ─► Idempotency (hapax-http) ─► upstream_service (headers, client)
//!     TLS, timeouts                       claims, replays             pool, timeouts, tunnels
//! ```

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

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use hapax::Claims;

use crate::daemon::{BoxError, Daemon, admin_line, daemon_settings, print_banner};
use crate::settings::{CommandSettings, ProxySettings, SettingFlags, SettingSources};
use health_gated_claims::HealthGatedClaims;
use route::ProxyRoute;
use router::ProxyRouter;
use upstream_service::ForwardOptions;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ProxySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ProxySettings::read(&sources)?;
    let routes = route::routes(&settings)?;
    let daemon = Daemon::boot(&sources, daemon_settings!(settings)).await?;
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
    print(&settings, &routes, daemon.address()?, admin);
    let stop = async || router.drain().await;
    daemon.serve(router.clone(), tls, settings.shutdown_timeout.0, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the routes, the store, and one line to try.
fn print(
    settings: &ProxySettings,
    routes: &[ProxyRoute],
    listen: SocketAddr,
    admin: Option<SocketAddr>,
) {
    let scheme = if settings.tls_cert.is_some() { "https" } else { "http" };
    let patterns: Vec<_> = routes.iter().map(|route| route.pattern.to_string()).collect();
    let mut lines = vec![("store", settings.store.shown())];
    lines.extend(
        patterns.iter().map(String::as_str).zip(routes.iter().map(|r| r.target.to_string())),
    );
    lines.push(admin_line(admin, "/healthz, /readyz, /metrics"));
    let keyed = "-H 'Idempotency-Key: order-1' -d cups=2";
    lines.push(("try", format!("curl -i {keyed} {scheme}://{listen}/orders    (twice)")));
    print_banner(std::io::stdout(), &format!("proxy listens on {scheme}://{listen}"), &lines);
}
