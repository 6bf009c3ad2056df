//! A RabbitMQ server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::{Certificates, SharedCertificates};
use crate::ports::{PortTaken, free_port, with_free_port};
use crate::process::{Process, server_methods};
use crate::wait::{START_TIMEOUT, wait_for};
use crate::{binary, cleanup};

/// The script itself, because the one on the `PATH` requires the package's own user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Each server has its own port mapper, so that no daemon remains; it listens on the second port that [`free_port`]
/// reserves.
const MAPPER_OFFSET: u16 = 10_000;

/// A RabbitMQ server, killed when dropped. It takes a few seconds to start, so the tests of one file should share it.
///
/// The user `guest` may do everything in the virtual host `/`. Persistent messages in durable
/// queues survive [`kill`](Self::kill) and [`restart`](Self::restart); the queues themselves survive only if the server
/// was [shut down](Self::shut_down) since they were declared. RabbitMQ confirms a declaration before it is durable
/// (seen: 4 of 72 queues were gone after a kill).
pub struct RabbitMq {
    // Fields are dropped in this order.
    process: Process,
    _mapper: Process,
    port: u16,
    distribution: u16,
    certificates: Option<SharedCertificates>,
    folder: TempDir,
}

impl RabbitMq {
    server_methods!(stop, cont, kill_family);

    /// Starts `rabbitmq-server`.
    pub fn start() -> Self {
        Self::launch(false)
    }

    /// Starts it so that it takes TLS connections only, with a certificate for `127.0.0.1` and `localhost` that the
    /// authority in [`ca_path`](Self::ca_path) has signed.
    pub fn tls() -> Self {
        Self::launch(true)
    }

    fn launch(tls: bool) -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("rabbitmq-");
            let certificates = tls.then(SharedCertificates::make);
            let files = certificates.as_ref().map(|shared| &shared.files);
            write_configuration(port, folder.path(), files);
            let mapper = start_mapper(port, folder.path());
            let log = folder.path().join("log");
            let process = Process::new(format!("RabbitMQ on port {port}"), log);
            let distribution = free_port();
            let server =
                Self { process, _mapper: mapper, port, distribution, certificates, folder };
            server.run()?;
            Ok(server)
        })
    }

    fn run(&self) -> Result<(), PortTaken> {
        let folder = self.folder.path();
        let script = Path::new(SERVER);
        let script =
            if script.is_file() { script.to_owned() } else { binary::require("rabbitmq-server") };
        self.process.spawn(
            Command::new(script)
                .current_dir(folder)
                // RabbitMQ writes its cookie there.
                .env("HOME", folder)
                .env("RABBITMQ_NODENAME", format!("hapax{}@localhost", self.port))
                .env("RABBITMQ_CONFIG_FILE", folder.join("rabbitmq"))
                .env("RABBITMQ_CONF_ENV_FILE", folder.join("none"))
                .env("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("plugins"))
                .env("RABBITMQ_MNESIA_BASE", folder.join("mnesia"))
                .env("RABBITMQ_LOG_BASE", folder.join("logs"))
                .env("RABBITMQ_LOGS", "-")
                .env("RABBITMQ_PID_FILE", folder.join("pid"))
                .env("RABBITMQ_DIST_PORT", self.distribution.to_string())
                .env(
                    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                    "-kernel inet_dist_use_interface {127,0,0,1}",
                )
                .env("ERL_EPMD_PORT", (self.port + MAPPER_OFFSET).to_string())
                // The script executes the server in its own process, which then receives the signals.
                .env("RUNNING_UNDER_SYSTEMD", "true"),
        );
        let answer = if self.certificates.is_some() { TLS_ALERT } else { METHOD_FRAME };
        self.process.wait_until_ready(|| answers_header_with(answer, self.port))
    }

    /// `amqp://guest:guest@127.0.0.1:PORT/%2f`, or `amqps://…`.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "amqps" } else { "amqp" };
        format!("{scheme}://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The certificate of the authority that has signed the server's, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the server was not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("this RabbitMQ does not speak TLS").files.authority
    }

    /// Ends the server with SIGTERM, after which everything is on disk.
    pub fn shut_down(&self) {
        self.process.terminate();
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_configuration(port: u16, folder: &Path, certificates: Option<&Certificates>) {
    let mut lines = vec![
        "log.console = true".to_owned(),
        "log.console.level = warning".to_owned(),
        "log.file = false".to_owned(),
    ];
    match certificates {
        None => lines.push(format!("listeners.tcp.default = 127.0.0.1:{port}")),
        Some(files) => lines.extend([
            "listeners.tcp = none".to_owned(),
            format!("listeners.ssl.default = 127.0.0.1:{port}"),
            format!("ssl_options.cacertfile = {}", files.authority.display()),
            format!("ssl_options.certfile = {}", files.certificate.display()),
            format!("ssl_options.keyfile = {}", files.key.display()),
            "ssl_options.verify = verify_none".to_owned(),
            "ssl_options.fail_if_no_peer_cert = false".to_owned(),
        ]),
    }
    fs::write(folder.join("rabbitmq.conf"), lines.join("\n") + "\n")
        .and_then(|()| fs::write(folder.join("plugins"), "[]."))
        .expect("cannot write RabbitMQ's configuration");
}

fn start_mapper(port: u16, folder: &Path) -> Process {
    let port = port + MAPPER_OFFSET;
    let mapper = Process::new(format!("epmd on port {port}"), folder.join("epmd.log"));
    mapper.spawn(
        Command::new(binary::require("epmd"))
            .args(["-address", "127.0.0.1", "-port", &port.to_string()])
            .current_dir(folder),
    );
    // Without a port mapper the server would start a daemon that nothing ends.
    wait_for("epmd answers", START_TIMEOUT, || {
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
    });
    mapper
}

/// The first byte of the server's answer to the protocol's header: a frame of the type *method*.
const METHOD_FRAME: u8 = 1;
/// The same from a server with TLS, for which the header is no handshake.
const TLS_ALERT: u8 = 21;

fn answers_header_with(answer: u8, port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return false;
    };
    let mut frame = [0; 1];
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    stream.write_all(b"AMQP\x00\x00\x09\x01").is_ok()
        && stream.read_exact(&mut frame).is_ok()
        && frame == [answer]
}
