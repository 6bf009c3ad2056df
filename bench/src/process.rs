//! Server processes under test: `hapax`, nginx and this binary itself.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context;
use hapax_testkit::{find_binary, free_port};
use hapax_workload::ProcessGroup;
use rustix::process::{Pid, Signal, kill_process};

/// How long a server may take to end by itself.
const TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct ServerProcess {
    child: Child,
    address: SocketAddr,
    /// Kept open while the server runs, so that it can write more.
    _said: Option<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Starts a server that prints `http://ADDRESS` when it listens.
    pub(crate) fn start_announced(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = spawn(command.stdout(Stdio::piped()))?;
        let mut said = BufReader::new(child.stdout.take().context("no standard output")?);
        let address = listening_address(&mut said);
        let unknown: SocketAddr = ([127, 0, 0, 1], 0).into();
        // Build the guard first: it ends the process if reading the address fails.
        let mut server = Self { child, address: unknown, _said: Some(said) };
        server.address = address.with_context(|| format!("{command:?} does not listen"))?;
        Ok(server)
    }

    /// Starts a server and waits until it listens at `address`.
    fn start_at(address: SocketAddr, command: &mut Command) -> anyhow::Result<Self> {
        let mut server = Self { child: spawn(command)?, address, _said: None };
        let end = Instant::now() + TIMEOUT * 3;
        while std::net::TcpStream::connect(address).is_err() {
            let ended = server.child.try_wait()?;
            anyhow::ensure!(ended.is_none() && Instant::now() < end, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The server and its worker processes.
    pub(crate) fn processes(&self) -> ProcessGroup {
        ProcessGroup::new([self.child.id()])
    }
}

fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    let command = command.stdin(Stdio::null());
    command.spawn().with_context(|| format!("cannot start {command:?}"))
}

fn listening_address(said: &mut impl BufRead) -> anyhow::Result<SocketAddr> {
    let mut line = String::new();
    said.read_line(&mut line)?;
    let (_, address) = line.split_once("http://").context("it does not say where")?;
    Ok(address.trim().parse()?)
}

impl Drop for ServerProcess {
    /// Sends SIGTERM first: only nginx itself can end its worker.
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let end = Instant::now() + TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= end {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The address of a server that chooses its own port.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";

/// The arguments of a `hapax` server in an empty folder. Neither the environment nor a settings file
/// changes its settings, and it has no access log, as nginx has none.
pub(crate) fn hapax_command(mut hapax: Command, edge: &str, store: &str, folder: &Path) -> Command {
    hapax
        .args([edge, "--listen", ANY_PORT, "--store", store, "--log-level", "error"])
        .env_clear()
        .current_dir(folder);
    hapax
}

/// Starts nginx in this folder with `configuration` for its address; `command` turns its binary into a
/// command.
pub(crate) fn start_nginx(
    folder: &Path,
    command: impl FnOnce(&Path) -> Command,
    configuration: impl FnOnce(SocketAddr) -> String,
) -> anyhow::Result<ServerProcess> {
    let mut command = command(&find_binary("nginx").map_err(anyhow::Error::msg)?);
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = folder.join("nginx.conf");
    let own = format!(
        "daemon off;\nworker_processes 1;\npid {0}/nginx.pid;\nerror_log {0}/error.log;\n{1}",
        folder.display(),
        configuration(address)
    );
    fs::write(&config, own)?;
    command.arg("-p").arg(folder).arg("-c").arg(config).arg("-e").arg(folder.join("error.log"));
    ServerProcess::start_at(address, command.env_clear())
}

/// The installed version of nginx; `None` where there is none.
pub(crate) fn nginx_version() -> Option<String> {
    let output = Command::new(find_binary("nginx").ok()?).arg("-v").output().ok()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Some(said.trim().rsplit_once('/')?.1.to_owned())
}

/// The flag that names the `hapax` binary.
#[derive(clap::Args)]
pub(crate) struct HapaxBinary {
    /// The `hapax` binary that is measured; the one beside this binary by default.
    #[arg(long, value_name = "PATH")]
    hapax: Option<PathBuf>,
}

impl HapaxBinary {
    pub(crate) fn path(&self) -> anyhow::Result<PathBuf> {
        let path = match &self.hapax {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("hapax"),
        };
        path.canonicalize().with_context(|| {
            let hint = "cargo build --release -p hapax-server, or --hapax PATH";
            format!("no hapax binary at {}: {hint}", path.display())
        })
    }
}
