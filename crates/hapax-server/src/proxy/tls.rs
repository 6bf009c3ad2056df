//! The listener's certificate and key.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::settings::ProxySettings;

/// TLS for clients, where it is configured.
pub(crate) fn for_clients(options: &ProxySettings) -> anyhow::Result<Option<TlsAcceptor>> {
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

pub(super) fn unusable_file(flag: &str, path: &Path) -> String {
    format!("{flag}: {} is no PEM file that can be used", path.display())
}
