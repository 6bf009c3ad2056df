//! Certificates: the listener's own, and those that upstreams are believed by.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::settings::Options;

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// TLS for clients, where it is configured.
pub(crate) fn for_clients(options: &Options) -> anyhow::Result<Option<TlsAcceptor>> {
    let (Some(certificate), Some(key)) = (&options.tls_cert, &options.tls_key) else {
        return Ok(None);
    };
    let chain = certificates(certificate).with_context(|| named("--tls-cert", certificate))?;
    let private = PrivateKeyDer::from_pem_file(key).with_context(|| named("--tls-key", key))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .context("--tls-cert and --tls-key do not belong together")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

/// TLS to upstreams. The system's roots are read only where somebody needs them.
pub(crate) fn for_upstreams(options: &Options, needed: bool) -> anyhow::Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    match &options.upstream_ca {
        Some(path) => {
            for certificate in certificates(path).with_context(|| named("--upstream-ca", path))? {
                roots.add(certificate).with_context(|| named("--upstream-ca", path))?;
            }
        }
        None if needed => add_the_systems(&mut roots)?,
        None => {}
    }
    Ok(ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn add_the_systems(roots: &mut RootCertStore) -> anyhow::Result<()> {
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    anyhow::ensure!(
        added > 0,
        "this system has no root certificates for an https:// upstream; install ca-certificates, or \
         name the one who signed its certificate with --upstream-ca FILE"
    );
    Ok(())
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    anyhow::ensure!(!found.is_empty(), "there is no certificate in it");
    Ok(found)
}

fn named(flag: &str, path: &Path) -> String {
    format!("{flag}: {} is no PEM file that can be used", path.display())
}
