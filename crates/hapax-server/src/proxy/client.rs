//! Connections to upstreams.

use anyhow::Context;
use hapax_http_client::{HttpClient, HttpClientConfig, TrustStore};

use super::idle_timeout::UploadProgress;
use super::tls::unusable_file;
use super::upstream_service::ProxiedBody;
use crate::settings::ProxySettings;

/// Sends requests to any upstream over pooled connections.
pub(crate) type Client = HttpClient<UploadProgress<ProxiedBody>>;

/// `tls` is whether any upstream has an `https://` address: the system's root certificates are read
/// only then.
pub(crate) fn new(options: &ProxySettings, tls: bool) -> anyhow::Result<Client> {
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
