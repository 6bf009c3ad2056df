//! A single Redis server, or one that speaks its protocol.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::command::{CLIENT, output_for, text};
use crate::ports::{PortTaken, with_free_port};
use crate::process::Process;
use crate::{binary, janitor};

/// What the server is for; decides what its configuration file says.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Plain,
    Tls,
    ClusterNode,
    ReplicaOf(u16),
    SentinelOf(u16),
}

/// The name under which sentinels know the master that they guard.
pub(crate) const MASTER_NAME: &str = "hapax";

/// A Redis server of one's own, killed when dropped.
///
/// It keeps an append-only file that is synced with every write, so that nothing it has
/// acknowledged is lost by [`kill`](Self::kill) and [`restart`](Self::restart).
pub struct Redis {
    // Fields are dropped in this order: the server ends before its folder goes.
    process: Process,
    port: u16,
    binary: PathBuf,
    arguments: Vec<String>,
    certificates: Option<Certificates>,
    folder: TempDir,
}

impl Redis {
    /// Starts `redis-server`.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts `redis-server` with further arguments, which win over the defaults:
    /// `&["--maxmemory", "3mb"]`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::launch(&server_binary(), Role::Plain, arguments)
    }

    /// Starts `redis-server` so that it speaks TLS only, with a certificate for `127.0.0.1` and
    /// `localhost` that the authority in [`ca_path`](Self::ca_path) has signed.
    pub fn tls() -> Self {
        Self::tls_with(&[])
    }

    /// Like [`tls`](Self::tls), with further arguments.
    pub fn tls_with(arguments: &[&str]) -> Self {
        Self::launch(&server_binary(), Role::Tls, arguments)
    }

    /// Starts another server that takes Redis' arguments, such as `valkey-server`.
    pub fn binary(path: impl AsRef<Path>) -> Self {
        Self::binary_with(path, &[])
    }

    /// Like [`binary`](Self::binary), with further arguments.
    pub fn binary_with(path: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::launch(path.as_ref(), Role::Plain, arguments)
    }

    pub(crate) fn launch(binary: &Path, role: Role, arguments: &[&str]) -> Self {
        with_free_port(|port| {
            let folder = janitor::folder("redis-");
            let certificates =
                matches!(role, Role::Tls).then(|| Certificates::make_in(folder.path()));
            let configuration = configuration(role, port, folder.path(), certificates.as_ref());
            fs::write(folder.path().join("redis.conf"), configuration)
                .expect("cannot write redis.conf");
            let mut all_arguments: Vec<String> =
                arguments.iter().map(|&argument| argument.to_owned()).collect();
            if matches!(role, Role::SentinelOf(_)) {
                all_arguments.push("--sentinel".to_owned());
            }
            let redis = Self {
                process: Process::new(format!("Redis on port {port}"), folder.path().join("log")),
                port,
                binary: binary.to_owned(),
                arguments: all_arguments,
                certificates,
                folder,
            };
            redis.run()?;
            Ok(redis)
        })
    }

    /// Also for a restart: the server may have rewritten its configuration file meanwhile (a
    /// sentinel does, and has it done by the servers it guards), so that is left as it is.
    fn run(&self) -> Result<(), PortTaken> {
        self.process.spawn(
            Command::new(&self.binary)
                .arg(self.folder.path().join("redis.conf"))
                .args(&self.arguments)
                .current_dir(self.folder.path()),
        );
        self.process.wait_until_ready(|| {
            self.try_cli(&["PING"], Duration::from_secs(5))
                // A server with a password does not say PONG to strangers.
                .is_ok_and(|answer| answer == "PONG" || answer.starts_with("NOAUTH"))
        })
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT/0`, or `rediss://…` for TLS.
    pub fn url(&self) -> String {
        let scheme = if self.certificates.is_some() { "rediss" } else { "redis" };
        format!("{scheme}://127.0.0.1:{}/0", self.port)
    }

    /// The certificate of the authority that has signed the server's, as a PEM file.
    ///
    /// # Panics
    ///
    /// When the server was not started by [`tls`](Self::tls).
    pub fn ca_path(&self) -> &Path {
        let certificates = self.certificates.as_ref();
        &certificates.expect("this Redis does not speak TLS").authority
    }

    /// The folder that holds its configuration, its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
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

    /// Asks the server through `redis-cli`, and returns the answer without the final line break.
    /// An error answer is an answer, too: `"ERR …"`.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.try_cli(arguments, CLIENT).unwrap_or_else(|problem| {
            panic!("redis-cli {arguments:?}: {problem}\n{}", self.log_tail())
        })
    }

    /// Runs several commands over one connection, a line each, and returns the answers, a line
    /// each. `WAIT`, for one, is about the writes of its own connection only.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub fn cli_lines(&self, commands: &[&str]) -> String {
        let input = commands.join("\n") + "\n";
        self.ask(&[], input, CLIENT).unwrap_or_else(|problem| {
            panic!("redis-cli {commands:?}: {problem}\n{}", self.log_tail())
        })
    }

    pub(crate) fn try_cli(&self, arguments: &[&str], limit: Duration) -> Result<String, String> {
        self.ask(arguments, String::new(), limit)
    }

    fn ask(&self, arguments: &[&str], input: String, limit: Duration) -> Result<String, String> {
        let mut command = Command::new(binary::require("redis-cli"));
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(certificates) = &self.certificates {
            command.arg("--tls");
            command.arg("--cacert").arg(&certificates.authority);
        }
        let output = output_for(command.args(arguments), input, limit)
            .ok_or_else(|| format!("no answer within {limit:?}"))?;
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stdout) + &text(&output.stderr))
        }
    }

    /// One line's value from the answer to `INFO` or `CLUSTER INFO`; `None` also when the server
    /// gives no answer.
    pub(crate) fn info(&self, question: &[&str], field: &str) -> Option<String> {
        let answer = self.try_cli(question, Duration::from_secs(5)).ok()?;
        answer.lines().find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            Some(value.trim_end().to_owned())
        })
    }

    /// Runs and is not paused.
    pub fn is_awake(&self) -> bool {
        self.process.is_awake()
    }

    /// The end of the server's log, for messages.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }
}

pub(crate) fn server_binary() -> PathBuf {
    binary::require("redis-server")
}

fn configuration(
    role: Role,
    port: u16,
    folder: &Path,
    certificates: Option<&Certificates>,
) -> String {
    let folder = folder.display();
    let mut lines = format!("bind 127.0.0.1\ndir \"{folder}\"\n");
    match certificates {
        None => lines += &format!("port {port}\n"),
        Some(files) => {
            let _ = write!(
                lines,
                "port 0\n\
                 tls-port {port}\n\
                 tls-cert-file \"{}\"\n\
                 tls-key-file \"{}\"\n\
                 tls-ca-cert-file \"{}\"\n\
                 tls-auth-clients no\n",
                files.certificate.display(),
                files.key.display(),
                files.authority.display(),
            );
        }
    }
    if let Role::SentinelOf(master) = role {
        // Short times, as a test waits for every failover, but not so short that a busy machine
        // causes one.
        let _ = write!(
            lines,
            "sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} 3000\n\
             sentinel failover-timeout {MASTER_NAME} 2000\n\
             sentinel parallel-syncs {MASTER_NAME} 1\n"
        );
        return lines;
    }
    // Without a disk, a master first waits five seconds for further replicas, and after the
    // transfer keeps all writes back until the replica's first sign of life, a second later: a
    // master killed in between would lose what its replica seemed to have.
    lines += "save \"\"\nappendonly yes\nappendfsync always\nrepl-diskless-sync no\n";
    match role {
        Role::ClusterNode => {
            // Long, because nodes that stand still with their machine are not to be taken for
            // dead; shortened when a test wants a failover. A replica may take over however
            // long it has not heard from its master: a paused test machine must not leave a
            // cluster without one.
            lines += "cluster-enabled yes\n\
                      cluster-config-file nodes.conf\n\
                      cluster-node-timeout 20000\n\
                      cluster-replica-validity-factor 0\n";
        }
        Role::ReplicaOf(master) => {
            let _ = writeln!(lines, "replicaof 127.0.0.1 {master}");
        }
        Role::Plain | Role::Tls | Role::SentinelOf(_) => {}
    }
    lines
}
