//! A throw-away certificate authority, and a certificate for loopback.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

const CONFIGURATION: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = hapax tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
[server]
basicConstraints = critical, CA:FALSE
extendedKeyUsage = serverAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
";

pub(crate) struct Certificates {
    folder: tempfile::TempDir,
}

impl Certificates {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("openssl.cnf"), CONFIGURATION).expect("written");
        let this = Self { folder };
        this.openssl(
            "req -x509 -config openssl.cnf -extensions authority -subj /CN=hapax-test-authority \
             -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
             -keyout ca.key -out ca.pem",
        );
        this.openssl(
            "req -new -config openssl.cnf -subj /CN=localhost -newkey ec \
             -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key.pem -out server.csr",
        );
        this.openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 \
             -extfile openssl.cnf -extensions server -out cert.pem",
        );
        this
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .current_dir(self.folder.path())
            .args(arguments.split_ascii_whitespace())
            .output()
            .expect("openssl is installed; ./test.sh installs it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn server(&self, alpn: &[&str]) -> Arc<ServerConfig> {
        let chain = CertificateDer::pem_file_iter(self.file("cert.pem")).expect("a certificate");
        let chain = chain.collect::<Result<_, _>>().expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(self.file("key.pem")).expect("a key");
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
        let authority = CertificateDer::from_pem_file(self.file("ca.pem")).expect("an authority");
        roots.add(authority).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions");
        config.with_root_certificates(roots).with_no_client_auth()
    }
}
