//! A NATS server with JetStream.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::{PortTaken, with_free_port};
use crate::process::Process;
use crate::{binary, janitor};

/// A NATS server of one's own with JetStream, killed when dropped.
///
/// Streams are kept in files, so that what it has acknowledged survives [`kill`](Self::kill) and
/// [`restart`](Self::restart).
pub struct Nats {
    process: Process,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Nats {
    /// Starts `nats-server` with JetStream.
    pub fn start() -> Self {
        Self::launch(true, &[])
    }

    /// Starts it with further arguments: `&["--auth", "secret"]`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::launch(true, arguments)
    }

    /// Starts it without JetStream, as a server that keeps nothing.
    pub fn without_jetstream() -> Self {
        Self::launch(false, &[])
    }

    fn launch(jetstream: bool, arguments: &[&str]) -> Self {
        with_free_port(|port| {
            let folder = janitor::folder("nats-");
            let mut all = vec!["-a".to_owned(), "127.0.0.1".to_owned()];
            all.extend(["-p".to_owned(), port.to_string()]);
            if jetstream {
                all.extend(["-js".to_owned(), "-sd".to_owned()]);
                all.push(folder.path().join("streams").display().to_string());
            }
            all.extend(arguments.iter().map(|&argument| argument.to_owned()));
            let log = folder.path().join("log");
            let process = Process::new(format!("NATS on port {port}"), log);
            let nats = Self { process, port, arguments: all, folder };
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
        self.process.wait_until_ready(|| self.greets())
    }

    /// A server that accepts clients says `INFO` first; JetStream is recovered before that.
    fn greets(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)) else {
            return false;
        };
        let mut word = [0; 4];
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        stream.read_exact(&mut word).is_ok() && &word == b"INFO"
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `nats://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
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

    /// Kills the server (SIGKILL). Harmless when it does not run.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Starts the server again, on the same port and with the data it had; kills it first if it
    /// still runs.
    pub fn restart(&self) {
        self.process.kill();
        if self.run().is_err() {
            panic!("port {} was taken\n{}", self.port, self.log_tail());
        }
    }

    /// The end of the server's log, for messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}
