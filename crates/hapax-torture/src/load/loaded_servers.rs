//! The servers under load: `hapax serve` with tenants, `hapax proxy`, and a watch over their memory.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hapax_testkit::{Program, free_port};
use tempfile::TempDir;

use crate::installation::StoreKind;
use crate::measured_store::MeasuredStore;
use crate::process_metrics::resident_memory;

const START_TIMEOUT: Duration = Duration::from_secs(120);
/// How many streams and connections one server takes: the open-file limit is 20,000 on many machines.
pub(crate) const STREAMS_PER_NODE: usize = 10_000;
const CONNECTIONS_PER_NODE: usize = 16_000;
/// `--buffer-memory` of all servers.
pub(crate) const BUFFER_MEMORY: u64 = 256 << 20;

/// A server and its memory.
pub(crate) struct LoadedServer {
    pub(crate) name: String,
    pub(crate) address: String,
    program: Program,
    peak: Arc<AtomicU64>,
}

impl LoadedServer {
    fn start(name: &str, hapax: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let port = free_port();
        let address = format!("127.0.0.1:{port}");
        let mut command = Command::new(hapax);
        command.env_clear().current_dir("/").args(arguments).args(["--listen", &address]);
        command.args(["--log-level", "error", "--max-connections"]);
        command.arg(CONNECTIONS_PER_NODE.to_string());
        command.args(["--buffer-memory", &format!("{}MiB", BUFFER_MEMORY >> 20)]);
        let program = Program::start(name, command);
        let socket = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect_timeout(&socket, Duration::from_secs(1)).is_err() {
            if program.has_ended() || Instant::now() > deadline {
                bail!("{name} does not listen\n{}", program.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { name: name.to_owned(), address, program, peak: Arc::default() })
    }

    /// The largest resident memory since it was last asked for.
    pub(crate) fn take_peak_memory(&self) -> u64 {
        self.peak.swap(0, Ordering::SeqCst)
    }

    pub(crate) fn pid(&self) -> Option<i32> {
        self.program.pid()
    }

    /// The end of the log of a server that ended; `None` while it runs.
    pub(crate) fn death(&self) -> Option<String> {
        self.program.has_ended().then(|| self.program.log_tail())
    }
}

/// All processes of a load.
pub(crate) struct LoadedServers {
    // Dropped in this order: hapax ends before its store.
    pub(crate) nodes: Vec<LoadedServer>,
    pub(crate) proxy: LoadedServer,
    pub(crate) quiet_token: String,
    pub(crate) loud_tokens: Vec<String>,
    pub(crate) store: MeasuredStore,
    over: Arc<AtomicBool>,
    _folder: TempDir,
}

impl LoadedServers {
    pub(crate) fn start(
        store: StoreKind,
        hapax: &Path,
        upstream: &str,
        streams: usize,
        loud_tenants: usize,
        retention: Option<&str>,
        further: &[&str],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let store = MeasuredStore::start(store, folder.path())?;
        let mut file = String::new();
        let quiet_token = new_token(hapax, "quiet", &mut file)?;
        let loud =
            (0..loud_tenants).map(|number| new_token(hapax, &format!("loud-{number}"), &mut file));
        let loud_tokens = loud.collect::<anyhow::Result<Vec<_>>>()?;
        let config = folder.path().join("load.toml");
        std::fs::write(&config, file)?;
        let (url, config) = (store.url(), config.display().to_string());
        let most = STREAMS_PER_NODE.to_string();
        // Whatever is kept only shortly is swept often, too.
        let swept = |name: &'static str| match retention {
            Some(retention) => vec![name, retention, "--sweep-interval", "2s"],
            None => Vec::new(),
        };
        let mut nodes = Vec::new();
        for number in 0..streams.div_ceil(STREAMS_PER_NODE).max(1) {
            let mut arguments = vec!["serve", "--store", &url, "--config", &config];
            arguments.extend(["--sse-connections", &most, "--sse-tenant-connections", &most]);
            arguments.extend(swept("--event-retention").iter().chain(further));
            let name = format!("serve-{}", number + 1);
            nodes.push(LoadedServer::start(&name, hapax, &arguments)?);
        }
        let mut arguments = vec!["proxy", "--store", &url, "--upstream", upstream];
        arguments.extend(swept("--retention").iter().chain(further));
        let proxy = LoadedServer::start("proxy", hapax, &arguments)?;
        let over = Arc::<AtomicBool>::default();
        let servers = Self { nodes, proxy, quiet_token, loud_tokens, store, over, _folder: folder };
        servers.watch_memory();
        Ok(servers)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &LoadedServer> {
        self.nodes.iter().chain([&self.proxy])
    }

    fn watch_memory(&self) {
        let watched =
            self.all().filter_map(|server| Some((server.program.pid()?, server.peak.clone())));
        let watched: Vec<_> = watched.collect();
        let over = self.over.clone();
        thread::spawn(move || {
            while !over.load(Ordering::SeqCst) {
                for (pid, peak) in &watched {
                    peak.fetch_max(resident_memory(*pid).unwrap_or(0), Ordering::SeqCst);
                }
                thread::sleep(Duration::from_millis(100));
            }
        });
    }
}

impl Drop for LoadedServers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
    }
}

/// Makes a token of a tenant of this name; its lines for the settings are appended to the file.
fn new_token(hapax: &Path, tenant: &str, file: &mut String) -> anyhow::Result<String> {
    let mut command = Command::new(hapax);
    command.args(["token", "new", "--name", tenant, "--tenant", tenant, "--scope", "data"]);
    let output = command.env_clear().output().context("hapax token new")?;
    let text = String::from_utf8(output.stdout)?;
    let (token, settings) = text.split_once("[[token]]").context("hapax token new")?;
    file.push_str("[[token]]");
    file.push_str(settings);
    file.push('\n');
    Ok(token.trim().to_owned())
}
