//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► router (which route) ─► Idempotency (hapax-http) ─► upstream_service (headers, client)
//!     TLS, timeouts                       claims, replays             pool, timeouts, tunnels
//! ```

mod client_fault;
mod cors;
mod forward;
mod health_gated_claims;
mod idle_timeout;
mod route;
mod router;
mod tunnel;
mod upstream_body;
mod upstream_failure;
mod upstream_service;

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use hapax::Claims;
use hapax_http_client::{HttpClient, HttpClientConfig, TrustStore};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::daemon::{BoxError, Daemon, admin_line, daemon_settings, fair_store, print_banner};
use crate::settings::{CommandSettings, ProxySettings, SettingFlags, SettingSources};
use health_gated_claims::HealthGatedClaims;
use idle_timeout::UploadProgress;
use route::ProxyRoute;
use router::ProxyRouter;
use upstream_service::{ForwardOptions, ProxiedBody};

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ProxySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ProxySettings::read(&sources)?;
    let mut routes = route::routes(&settings)?;
    let daemon = Daemon::boot(&sources, daemon_settings!(settings, "proxy")).await?;
    for route in &mut routes {
        route.policy = route.policy.clone().with_label(&daemon.node);
    }
    let admin = daemon.serve_admin(settings.admin.as_ref(), axum::Router::new()).await?;

    let tls_upstream = routes.iter().any(|route| route.target.is_tls());
    let client = upstream_client(&settings, tls_upstream)?;
    let forward = ForwardOptions {
        http2: settings.upstream_http2,
        host: settings.host,
        trust_forwarded: settings.trust_forwarded,
        tunnel_idle: settings.tunnel_idle_timeout,
    };
    let claims: Arc<dyn Claims> = Arc::new(HealthGatedClaims {
        store: fair_store(daemon.store.clone(), settings.store_calls, settings.store_timeout),
        readiness: daemon.readiness.clone(),
    });
    let router = ProxyRouter::new(
        &routes,
        &claims,
        &client,
        forward,
        settings.body_timeout,
        settings.cors_origins.clone(),
    );
    let tls = tls_acceptor(&settings)?;
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

/// Sends requests to any upstream over pooled connections.
type Client = HttpClient<UploadProgress<ProxiedBody>>;

/// `tls` is whether any upstream is `https://`: the system's root certificates are read only then.
fn upstream_client(options: &ProxySettings, tls: bool) -> anyhow::Result<Client> {
    let trust = match &options.upstream_ca {
        Some(path) => {
            TrustStore::from_pem_file(path).with_context(|| unusable_file("--upstream-ca", path))?
        }
        None if tls => TrustStore::system().context(
            "an https:// upstream cannot be verified without root certificates; name the \
             certificate authority that signed its certificate with --upstream-ca FILE",
        )?,
        None => TrustStore::empty(),
    };
    Ok(HttpClientConfig::new(trust)
        .connect_timeout(options.connect_timeout)
        .idle_timeout(options.upstream_idle.0)
        .http2(options.upstream_http2)
        .build())
}

fn tls_acceptor(options: &ProxySettings) -> anyhow::Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let chain =
        certificates(certificate).with_context(|| unusable_file("--tls-cert", certificate))?;
    let private =
        PrivateKeyDer::from_pem_file(key).with_context(|| unusable_file("--tls-key", key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .context("--tls-cert and --tls-key do not belong together")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!found.is_empty(), "there is no certificate in it");
    Ok(found)
}

fn unusable_file(flag: &str, path: &Path) -> String {
    format!("{flag}: {} is no PEM file that can be used", path.display())
}
