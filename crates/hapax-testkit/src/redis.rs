//! A single Redis server, or one that speaks its protocol.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::certificates::{Certificates, SharedCertificates};
use crate::command::{CLIENT_TIMEOUT, output_with_input, text};
use crate::ports::{PortTaken, with_free_port};
use crate::process::{Process, server_methods};
use crate::{binary, cleanup};

/// The purpose of a server, which decides its configuration file.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Plain,
    ClusterNode,
    ReplicaOf(u16),
    SentinelOf(u16),
}

/// The name under which sentinels monitor the master.
pub(crate) const MASTER_NAME: &str = "hapax";

/// A Redis server, killed when dropped.
///
/// The append-only file is synced with every write, so that acknowledged writes survive [`kill`](Self::kill) and
/// [`restart`](Self::restart).
pub struct Redis {
    // Fields are dropped in this order: the server ends before its folder is removed.
    process: Process,
    port: u16,
    binary: PathBuf,
    arguments: Vec<String>,
    certificates: Option<Arc<SharedCertificates>>,
    folder: TempDir,
}

impl Redis {
    server_methods!(stop, cont, kill);

    /// Starts `redis-server`.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts `redis-server` with further arguments, which win over the defaults:
    /// `&["--maxmemory", "3mb"]`.
    pub fn with(arguments: &[&str]) -> Self {
        Self::launch(&server_binary(), Role::Plain, None, arguments)
    }

    /// Starts `redis-server` so that it speaks TLS only, with a certificate for `127.0.0.1` and
    /// `localhost` that the authority in [`ca_path`](Self::ca_path) has signed.
    pub fn tls() -> Self {
        Self::tls_with(&[])
    }

    /// Like [`tls`](Self::tls), with further arguments.
    pub fn tls_with(arguments: &[&str]) -> Self {
        let certificates = Arc::new(SharedCertificates::make());
        Self::launch(&server_binary(), Role::Plain, Some(&certificates), arguments)
    }

    /// Starts another server that takes Redis' arguments, such as `valkey-server`.
    pub fn binary(path: impl AsRef<Path>) -> Self {
        Self::binary_with(path, &[])
    }

    /// Like [`binary`](Self::binary), with further arguments.
    pub fn binary_with(path: impl AsRef<Path>, arguments: &[&str]) -> Self {
        Self::launch(path.as_ref(), Role::Plain, None, arguments)
    }

    /// Starts a server, which speaks TLS only if there are certificates.
    pub(crate) fn launch(
        binary: &Path,
        role: Role,
        certificates: Option<&Arc<SharedCertificates>>,
        arguments: &[&str],
    ) -> Self {
        with_free_port(|port| {
            let folder = cleanup::temp_folder("redis-");
            let files = certificates.map(|shared| &shared.files);
            let configuration = configuration(role, port, folder.path(), files);
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
                certificates: certificates.cloned(),
                folder,
            };
            redis.run()?;
            Ok(redis)
        })
    }

    /// Starts the server with its present configuration file: a sentinel rewrites its own file and those of the servers
    /// that it monitors, which a restart must not undo.
    fn run(&self) -> Result<(), PortTaken> {
        self.mend_append_only_file();
        self.process.spawn(
            Command::new(&self.binary)
                .arg(self.folder.path().join("redis.conf"))
                .args(&self.arguments)
                .current_dir(self.folder.path()),
        );
        self.process.wait_until_ready(|| {
            self.try_cli(&["PING"], Duration::from_secs(5))
                // A server with a password does not answer PONG without it.
                .is_ok_and(|answer| answer == "PONG" || answer.starts_with("NOAUTH"))
        })
    }

    /// Removes a write that a kill has cut off, as an operator does: with the whole script that it belongs to.
    fn mend_append_only_file(&self) {
        let dir = self.arguments.iter().skip_while(|argument| *argument != "--dir").nth(1);
        let dir = dir.map_or(self.folder.path(), Path::new);
        let files = ["appendonlydir/appendonly.aof.manifest", "appendonly.aof"];
        for file in files.map(|file| dir.join(file)).iter().filter(|file| file.exists()) {
            let mut command = Command::new(binary::require("redis-check-aof"));
            let _ = output_with_input(command.arg("--fix").arg(file), "y\n".into(), CLIENT_TIMEOUT);
        }
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
        &certificates.expect("this Redis does not speak TLS").files.authority
    }

    /// The folder that holds its configuration, its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a command through `redis-cli`, and returns the reply without the final line break. An error is a reply,
    /// too: `"ERR …"`.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub fn cli(&self, arguments: &[&str]) -> String {
        self.must_answer(arguments, String::new(), arguments)
    }

    /// Sends several commands over one connection, a line each, and returns the replies, a line each. `WAIT`, for
    /// example, is about the writes of its own connection.
    ///
    /// # Panics
    ///
    /// When the server cannot be reached.
    pub fn cli_lines(&self, commands: &[&str]) -> String {
        self.must_answer(&[], commands.join("\n") + "\n", commands)
    }

    fn must_answer(&self, arguments: &[&str], input: String, shown: &[&str]) -> String {
        self.run_cli(arguments, input, CLIENT_TIMEOUT)
            .unwrap_or_else(|problem| panic!("redis-cli {shown:?}: {problem}\n{}", self.log_tail()))
    }

    pub(crate) fn try_cli(&self, arguments: &[&str], timeout: Duration) -> Result<String, String> {
        self.run_cli(arguments, String::new(), timeout)
    }

    fn run_cli(
        &self,
        arguments: &[&str],
        input: String,
        timeout: Duration,
    ) -> Result<String, String> {
        let mut command = Command::new(binary::require("redis-cli"));
        command.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]);
        if let Some(certificates) = &self.certificates {
            command.arg("--tls");
            command.arg("--cacert").arg(&certificates.files.authority);
        }
        let output = output_with_input(command.args(arguments), input, timeout)
            .ok_or_else(|| format!("no answer within {timeout:?}"))?;
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(text(&output.stdout) + &text(&output.stderr))
        }
    }

    /// A field of the reply to `INFO` or `CLUSTER INFO`; `None` also if the server does not reply.
    pub(crate) fn info(&self, command: &[&str], field: &str) -> Option<String> {
        let answer = self.try_cli(command, Duration::from_secs(5)).ok()?;
        answer.lines().find_map(|line| {
            let value = line.strip_prefix(field)?.strip_prefix(':')?;
            Some(value.trim_end().to_owned())
        })
    }

    /// Whether the server runs and is not paused.
    pub fn is_awake(&self) -> bool {
        self.process.is_awake()
    }
}

/// The port that all of these servers named; `None` unless each named the same.
pub(crate) fn agreed(mut ports: impl Iterator<Item = Option<u16>>) -> Option<u16> {
    let first = ports.next()??;
    ports.all(|port| port == Some(first)).then_some(first)
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
                 tls-auth-clients no\n\
                 tls-replication yes\n",
                files.certificate.display(),
                files.key.display(),
                files.authority.display(),
            );
        }
    }
    if let Role::SentinelOf(master) = role {
        // Short, because tests wait for failovers, but not so short that a busy machine causes one.
        let _ = write!(
            lines,
            "sentinel monitor {MASTER_NAME} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER_NAME} 3000\n\
             sentinel failover-timeout {MASTER_NAME} 2000\n\
             sentinel parallel-syncs {MASTER_NAME} 1\n"
        );
        return lines;
    }
    // A diskless sync first waits five seconds for further replicas, and after the transfer holds all writes back until
    // the replica's first acknowledgement a second later: a master killed in between would lose writes that its
    // replica seemed to have.
    lines += "save \"\"\nappendonly yes\nappendfsync always\nrepl-diskless-sync no\n";
    // A server that loads a cut file by itself may lose acknowledged writes at the next restart; `restart` mends it.
    lines += "aof-load-truncated no\n";
    match role {
        Role::ClusterNode => {
            if certificates.is_some() {
                lines += "tls-cluster yes\n";
            }
            // A long timeout, because nodes of a busy machine must not be taken for dead; a test that wants a failover
            // shortens it. A replica may take over no matter how long it has been without its master, so that a paused
            // machine does not leave the cluster without a master.
            lines += "cluster-enabled yes\n\
                      cluster-config-file nodes.conf\n\
                      cluster-node-timeout 20000\n\
                      cluster-replica-validity-factor 0\n";
        }
        Role::ReplicaOf(master) => {
            let _ = writeln!(lines, "replicaof 127.0.0.1 {master}");
        }
        Role::Plain | Role::SentinelOf(_) => {}
    }
    lines
}
