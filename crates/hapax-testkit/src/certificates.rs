//! A throw-away certificate authority and a server certificate for loopback.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::command::{CLIENT_TIMEOUT, must_succeed};
use crate::{binary, cleanup};

/// Used instead of the machine's openssl.cnf, whose defaults differ between versions. The server's certificate is not the
/// authority's own, which strict clients refuse. Nodes of a Redis Cluster are clients of one another.
const CONFIGURATION: &str = "\
[req]
distinguished_name = name
prompt = no
[name]
CN = hapax tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = IP:127.0.0.1, DNS:localhost
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
";

/// The files of a certificate authority and of a server on loopback that it has signed.
#[derive(Debug)]
pub struct Certificates {
    /// The authority's certificate, which clients have to trust.
    pub authority: PathBuf,
    /// The server's certificate.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
}

impl Certificates {
    /// Makes the files in `folder`; they live as long as that does.
    pub fn make_in(folder: &Path) -> Self {
        fs::write(folder.join("openssl.cnf"), CONFIGURATION).expect("cannot write openssl.cnf");
        let openssl = |arguments: &str| {
            must_succeed(
                Command::new(binary::require("openssl"))
                    .current_dir(folder)
                    .args(arguments.split_ascii_whitespace()),
                CLIENT_TIMEOUT,
            );
        };
        openssl(
            "req -x509 -config openssl.cnf -extensions authority -subj /CN=hapax-test-authority \
             -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
             -keyout ca.key -out ca.pem",
        );
        openssl(
            "req -new -config openssl.cnf -subj /CN=localhost \
             -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
             -keyout server.key -out server.csr",
        );
        openssl(
            "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 3650 \
             -extfile openssl.cnf -extensions server -out server.pem",
        );
        Self {
            authority: folder.join("ca.pem"),
            certificate: folder.join("server.pem"),
            key: folder.join("server.key"),
        }
    }
}

/// Certificates that several servers share, in a folder of their own.
pub(crate) struct SharedCertificates {
    pub(crate) files: Certificates,
    _folder: TempDir,
}

impl SharedCertificates {
    pub(crate) fn make() -> Self {
        let folder = cleanup::temp_folder("certificates-");
        Self { files: Certificates::make_in(folder.path()), _folder: folder }
    }
}
