//! A NATS server with JetStream.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::SharedCertificates;
use crate::ports::{PortTaken, with_free_port};
use crate::process::{Process, server_methods};
use crate::{binary, cleanup};

/// A NATS server with JetStream, killed when dropped.
///
/// Streams are kept in files, so that acknowledged messages survive [`kill`](Self::kill) and
/// [`restart`](Self::restart).
pub struct Nats {
    process: Process,
    port: u16,
    arguments: Vec<String>,
    certificates: Option<SharedCertificates>,
    folder: TempDir,
}

impl Nats {
    server_methods!(stop, cont, kill);

    /// Starts `nats-server` with JetStream.
    pub fn start() -> Self {
        Self::launch(true, &[])
    }

    /// Starts it with further arguments: `&["--auth", "secret"]`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::launch(true, arguments)
    }

    /// Starts it so that it takes TLS connections only, with a certificate for `127.0.0.1` and `localhost` that the
    /// authority in [`ca_path`](Self::ca_path) has signed.
    pub fn tls() -> Self {
        let certificates = SharedCertificates::make();
        let shown = |path: &Path| path.display().to_string();
        let (certificate, key) =
            (shown(&certificates.files.certificate), shown(&certificates.files.key));
        let arguments = ["--tls", "--tlscert", &certificate, "--tlskey", &key];
        let mut nats = Self::launch(true, &arguments);
        nats.certificates = Some(certificates);
        nats
    }

    /// Starts it without JetStream, as a server that stores nothing.
    pub fn without_jetstream() -> Self {
        Self::launch(false, &[])
    }

    fn launch(jetstream: bool, arguments: &[&str]) -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("nats-");
            let mut all = vec!["-a".to_owned(), "127.0.0.1".to_owned()];
            all.extend(["-p".to_owned(), port.to_string()]);
            if jetstream {
                all.extend(["-js".to_owned(), "-sd".to_owned()]);
                all.push(folder.path().join("streams").display().to_string());
            }
            all.extend(arguments.iter().map(|&argument| argument.to_owned()));
            let log = folder.path().join("log");
            let process = Process::new(format!("NATS on port {port}"), log);
            let nats = Self { process, port, arguments: all, certificates: None, folder };
            nats.run()?;
            Ok(nats)
        })
    }

    fn run(&self) -> Result<(), PortTaken> {
        self.process.spawn(
            Command::new(binary::require("nats-server"))
                .args(&self.arguments)
                .current_dir(self.folder.path()),
        );
        self.process.wait_until_ready(|| self.is_ready())
    }

    /// Whether the server sends `INFO`, which it does after JetStream has recovered.
    fn is_ready(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else {
            return false;
        };
        let mut word = [0; 4];
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        stream.read_exact(&mut word).is_ok() && &word == b"INFO"
    }

    /// `nats://127.0.0.1:PORT`, or `tls://…`.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "tls" } else { "nats" };
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The certificate of the authority that has signed the server's, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the server was not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("this NATS does not speak TLS").files.authority
    }
}
