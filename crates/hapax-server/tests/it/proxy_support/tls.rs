//! TLS on loopback, signed by a throw-away authority.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The certificate files, deleted when dropped.
pub(crate) struct Certificates {
    pub(crate) files: hapax_testkit::Certificates,
    _folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { files: hapax_testkit::Certificates::make_in(folder.path()), _folder: folder }
    }

    pub(crate) fn server(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(&self.files.certificate).expect("a certificate");
        let chain = chain.collect::<Result<_, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(&self.files.key).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions");
        let config = config.with_no_client_auth().with_single_cert(chain, key);
        let mut config = config.expect("they belong together");
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    pub(crate) fn client(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(&self.files.authority).expect("an authority");
        roots.add(authority).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions");
        config.with_root_certificates(roots).with_no_client_auth()
    }
}
