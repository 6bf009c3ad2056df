//! A RabbitMQ server.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::{PortTaken, free_port, with_free_port};
use crate::process::Process;
use crate::wait::{READY, wait_for};
use crate::{binary, janitor};

/// The script itself: the one on the `PATH` insists on the package's own user.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";
/// Each server has a port mapper of its own, so that no daemon is left behind; it listens beside
/// the server, where [`free_port`] has made sure of a second free port.
const MAPPER_OFFSET: u16 = 10_000;

/// A RabbitMQ server of one's own, killed when dropped. It takes a few seconds to start, so tests
/// of one file should share it.
///
/// The user `guest` may do everything in the virtual host `/`. Persistent messages in durable
/// queues survive [`kill`](Self::kill) and [`restart`](Self::restart); the queues themselves do once
/// the server was [shut down](Self::shut_down) in order since they were declared. It answers a
/// declaration before that survives a kill (seen: 4 of 72 queues were gone).
pub struct RabbitMq {
    // Fields are dropped in this order.
    process: Process,
    _mapper: Process,
    port: u16,
    distribution: u16,
    folder: TempDir,
}

impl RabbitMq {
    /// Starts `rabbitmq-server`.
    pub fn start() -> Self {
        with_free_port(|port| {
            let folder = janitor::folder("rabbitmq-");
            write_configuration(port, folder.path());
            let mapper = start_mapper(port, folder.path());
            let log = folder.path().join("log");
            let process = Process::new(format!("RabbitMQ on port {port}"), log);
            let distribution = free_port();
            let server = Self { process, _mapper: mapper, port, distribution, folder };
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
                // The cookie is made there.
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
                // The script becomes the server, and signals reach it.
                .env("RUNNING_UNDER_SYSTEMD", "true"),
        );
        self.process.wait_until_ready(|| greets(self.port))
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `amqp://guest:guest@127.0.0.1:PORT/%2f`.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}/%2f", self.port)
    }

    /// The server's process number; `None` after [`kill`](Self::kill).
    pub fn pid(&self) -> Option<i32> {
        self.process.pid().map(nix::unistd::Pid::as_raw)
    }

    /// Pauses the server (SIGSTOP): connections stay open, nothing is answered.
    pub fn stop(&self) {
        self.process.stop();
    }

    /// Lets a paused server go on (SIGCONT).
    pub fn cont(&self) {
        self.process.cont();
    }

    /// Ends the server in order (SIGTERM): all that it knows is on disk then.
    pub fn shut_down(&self) {
        self.process.terminate();
    }

    /// Kills the server (SIGKILL). Harmless when it does not run.
    pub fn kill(&self) {
        self.process.kill_family();
    }

    /// Starts the server again, on the same port and with the data it had; kills it first if it
    /// still runs.
    pub fn restart(&self) {
        self.kill();
        if self.run().is_err() {
            panic!("port {} was taken\n{}", self.port, self.log_tail());
        }
    }

    /// The end of the server's log, for messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

impl Drop for RabbitMq {
    fn drop(&mut self) {
        self.kill();
    }
}

fn write_configuration(port: u16, folder: &Path) {
    let lines = [
        format!("listeners.tcp.default = 127.0.0.1:{port}"),
        "log.console = true".to_owned(),
        "log.console.level = warning".to_owned(),
        "log.file = false".to_owned(),
    ];
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
    // The server would start a daemon of its own that nobody ends.
    wait_for("epmd answers", READY, || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok());
    mapper
}

/// Whether it answers the protocol's header with a first frame, of the type *method*.
fn greets(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
        return false;
    };
    let mut frame = [0; 1];
    let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
    stream.write_all(b"AMQP\x00\x00\x09\x01").is_ok()
        && stream.read_exact(&mut frame).is_ok()
        && frame == [1]
}
