//! The certificates by which servers are believed.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::BoxError;

/// The root certificates that a client trusts.
#[derive(Clone)]
pub struct TrustStore(Arc<RootCertStore>);

/// Why there is no trust store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrustStoreError {
    /// The system has no root certificates.
    #[error("this system has no root certificates; install ca-certificates")]
    NoSystemRoots,
    /// The file cannot be read, is not PEM, or holds a certificate that cannot be a root.
    #[error(transparent)]
    Unusable(BoxError),
    /// The file has no certificate in it.
    #[error("there is no certificate in it")]
    NoCertificate,
}

impl TrustStore {
    /// The system's root certificates, a company's own included. They are read once per process.
    ///
    /// # Errors
    /// Where there are none.
    pub fn system() -> Result<Self, TrustStoreError> {
        static SYSTEM: OnceLock<TrustStore> = OnceLock::new();
        let store = SYSTEM.get_or_init(|| {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Self(Arc::new(roots))
        });
        if store.0.is_empty() { Err(TrustStoreError::NoSystemRoots) } else { Ok(store.clone()) }
    }

    /// The certificates of a PEM file, and no others.
    ///
    /// # Errors
    /// Where the file cannot be read, or has no usable certificate.
    pub fn from_pem_file(path: &Path) -> Result<Self, TrustStoreError> {
        let mut roots = RootCertStore::empty();
        let mut add_all = || -> Result<(), BoxError> {
            for certificate in CertificateDer::pem_file_iter(path)? {
                roots.add(certificate?)?;
            }
            Ok(())
        };
        add_all().map_err(TrustStoreError::Unusable)?;
        if roots.is_empty() {
            return Err(TrustStoreError::NoCertificate);
        }
        Ok(Self(Arc::new(roots)))
    }

    /// No certificates, for a client that calls only `http://` addresses.
    pub fn empty() -> Self {
        Self(Arc::new(RootCertStore::empty()))
    }

    pub(crate) fn into_tls_config(self) -> ClientConfig {
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
            .with_root_certificates(self.0)
            .with_no_client_auth()
    }
}

impl fmt::Debug for TrustStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TrustStore({} certificates)", self.0.len())
    }
}
