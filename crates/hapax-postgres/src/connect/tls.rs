//! TLS with the modes of libpq: encryption only, a trusted root, or a trusted root and the host name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hapax_core::{StoreError, StoreResult};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::incompatible;

/// The TLS options of the URL.
pub(crate) struct TlsOptions {
    pub(crate) mode: SslMode,
    pub(crate) trust: TlsTrust,
    pub(crate) check_name: bool,
    pub(crate) identity: Option<ClientIdentity>,
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self { mode: SslMode::Prefer, trust: TlsTrust::Anyone, check_name: false, identity: None }
    }
}

/// Which server certificates are accepted.
pub(crate) enum TlsTrust {
    Anyone,
    System,
    File(PathBuf),
}

/// The client certificate and its key.
#[derive(Default)]
pub(crate) struct ClientIdentity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl TlsOptions {
    pub(crate) fn connector(&self) -> StoreResult<MakeRustlsConnect> {
        let provider = Arc::new(crypto::ring::default_provider());
        let verifier = self.verifier(provider.clone())?;
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(StoreError::internal)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from_pem_file(&identity.key)
                    .map_err(|error| unreadable("sslkey", error))?;
                builder
                    .with_client_auth_cert(certificates("sslcert", &identity.certificate)?, key)
                    .map_err(|error| unreadable("sslcert", error))?
            }
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn verifier(&self, provider: Arc<CryptoProvider>) -> StoreResult<Arc<dyn ServerCertVerifier>> {
        let mut roots = RootCertStore::empty();
        match &self.trust {
            TlsTrust::Anyone => {
                return Ok(Arc::new(LenientVerifier { provider, chain: None }));
            }
            TlsTrust::System => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            TlsTrust::File(path) => {
                for certificate in certificates("sslrootcert", path)? {
                    roots.add(certificate).map_err(|error| unreadable("sslrootcert", error))?;
                }
            }
        }
        let chain = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .build()
            .map_err(|error| unreadable("sslrootcert", error))?;
        match self.check_name {
            true => Ok(chain),
            false => Ok(Arc::new(LenientVerifier { provider, chain: Some(chain) })),
        }
    }
}

fn certificates(option: &str, path: &Path) -> StoreResult<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unreadable(option, error))
}

fn unreadable(option: &str, error: impl std::fmt::Display) -> StoreError {
    incompatible(format!("the file of {option} cannot be used: {error}"))
}

/// A verifier with the modes of libpq below `verify-full`, which rustls does not have.
#[derive(Debug)]
struct LenientVerifier {
    provider: Arc<CryptoProvider>,
    /// `verify-ca`: the chain must lead to a trusted root, but the host name is not checked. `None` for
    /// `prefer` and `require`: encryption without authentication of the server.
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for LenientVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        // The name is checked last, so that this error means that the chain is valid.
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
