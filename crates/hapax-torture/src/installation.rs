//! The installation under test: a real store, real `hapax` processes, and a breakable connection before each.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hapax_testkit::{Postgres, Program, Redis, TcpProxy, free_port};
use tempfile::TempDir;

use crate::power_cut_disk::PowerCutDisk;

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StoreKind {
    /// A SQLite file.
    Sqlite,
    /// One Redis with an append-only file that is synced with every write.
    Redis,
    /// One Redis that forgets everything when it is killed: the checker has to notice.
    ForgetfulRedis,
    /// One PostgreSQL.
    Postgres,
}

impl StoreKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Redis => "redis",
            Self::ForgetfulRedis => "forgetful-redis",
            Self::Postgres => "postgres",
        }
    }
}

/// The longest that a process may take to listen, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) enum RunningStore {
    Sqlite(PathBuf),
    Redis(Redis),
    Postgres(Postgres),
}

impl RunningStore {
    /// Starts it with its data in this folder; PostgreSQL has its own.
    fn start(kind: StoreKind, folder: &Path) -> anyhow::Result<Self> {
        let dir = folder.display().to_string();
        Ok(match kind {
            StoreKind::Sqlite => Self::Sqlite(folder.join("hapax.db")),
            StoreKind::Redis => Self::Redis(Redis::with(&["--dir", &dir])),
            StoreKind::ForgetfulRedis => Self::Redis(Redis::with(&["--appendonly", "no"])),
            StoreKind::Postgres => Self::Postgres(Postgres::start()),
        })
    }

    /// The URL without a proxy in between.
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => format!("sqlite:{}", file.display()),
            Self::Redis(redis) => redis.url(),
            Self::Postgres(postgres) => postgres.url(),
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::Sqlite(_) => None,
            Self::Redis(redis) => Some(redis.port()),
            Self::Postgres(postgres) => Some(postgres.port()),
        }
    }

    pub(crate) fn kill(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Redis(redis) => redis.kill(),
            Self::Postgres(postgres) => postgres.kill(),
        }
    }

    pub(crate) fn restart(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Redis(redis) => redis.restart(),
            Self::Postgres(postgres) => postgres.restart(),
        }
    }

    pub(crate) fn stop(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Redis(redis) => redis.stop(),
            Self::Postgres(postgres) => postgres.stop(),
        }
    }

    pub(crate) fn cont(&self) {
        match self {
            Self::Sqlite(_) => {}
            Self::Redis(redis) => redis.cont(),
            Self::Postgres(postgres) => postgres.cont(),
        }
    }
}

/// A running `hapax`.
pub(crate) struct HapaxNode {
    pub(crate) name: String,
    pub(crate) program: Program,
    /// Where it listens; a relay for its administrator.
    port: u16,
    /// The connection by which clients reach it; a relay has none.
    pub(crate) link: Option<TcpProxy>,
    /// It was killed and is not known to listen again.
    pub(crate) was_killed: AtomicBool,
}

impl HapaxNode {
    fn start(name: &str, hapax: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(hapax);
        // Without the developer's own settings.
        command.env_clear().current_dir("/").args(arguments);
        command.args(["--store-timeout", "1s", "--log-level", "warn", "--gauge-interval", "0s"]);
        let (port, is_relay) = (free_port(), arguments.first() == Some(&"relay"));
        command.arg(if is_relay { "--admin" } else { "--listen" });
        command.arg(format!("127.0.0.1:{port}"));
        let program = Program::start(name, command);
        let link = (!is_relay).then(|| TcpProxy::to(port));
        Self { name: name.to_owned(), program, port, link, was_killed: AtomicBool::new(false) }
    }

    /// Waits until it listens.
    pub(crate) fn wait_until_ready(&self) -> anyhow::Result<()> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            if self.program.has_ended() || Instant::now() > deadline {
                bail!("{} does not listen\n{}", self.name, self.program.log_tail());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// The address for clients.
    pub(crate) fn address(&self) -> Option<String> {
        self.link.as_ref().map(|link| format!("127.0.0.1:{}", link.port()))
    }

    /// Whether it ended by itself, which no fault explains.
    fn has_crashed(&self) -> bool {
        self.program.has_ended() && !self.was_killed.load(Ordering::SeqCst)
    }
}

/// All processes of a run.
pub(crate) struct Installation {
    // Fields are dropped in this order: hapax ends before its store.
    pub(crate) nodes: Vec<HapaxNode>,
    pub(crate) store_link: Option<TcpProxy>,
    pub(crate) store: RunningStore,
    pub(crate) disk: Option<Arc<PowerCutDisk>>,
    hapax: PathBuf,
    store_url: String,
    crashes: Mutex<Vec<String>>,
    _folder: TempDir,
}

impl Installation {
    /// Starts the store and two `hapax serve` on it.
    pub(crate) fn start(kind: StoreKind, hapax: &Path, power_cuts: bool) -> anyhow::Result<Self> {
        let disk = match kind {
            _ if !power_cuts => None,
            StoreKind::Sqlite | StoreKind::Redis => Some(Arc::new(PowerCutDisk::make()?)),
            _ => bail!("power cuts are for sqlite and redis"),
        };
        let folder = tempfile::tempdir()?;
        let data = disk.as_ref().map_or_else(|| folder.path().to_owned(), |disk| disk.path());
        let store = RunningStore::start(kind, &data)?;
        let store_link = store.port().map(TcpProxy::to);
        let store_url = match (&store_link, store.port()) {
            (Some(link), Some(port)) => {
                store.url().replace(&format!(":{port}/"), &format!(":{}/", link.port()))
            }
            _ => store.url(),
        };
        let mut installation = Self {
            nodes: Vec::new(),
            store_link,
            store,
            disk,
            hapax: hapax.to_owned(),
            store_url,
            crashes: Mutex::default(),
            _folder: folder,
        };
        for name in ["serve-1", "serve-2"] {
            let url = installation.store_url.clone();
            let arguments =
                ["serve", "--store", &url, "--sweep-interval", "2s", "--sse-keep-alive", "1s"];
            // One after the other, so that the first one makes the tables.
            installation.add(name, &arguments)?;
        }
        Ok(installation)
    }

    /// Adds `hapax proxy` before this upstream.
    pub(crate) fn add_proxy(&mut self, upstream: &str) -> anyhow::Result<()> {
        let url = self.store_url.clone();
        for name in ["proxy-1", "proxy-2"] {
            let arguments = [
                "proxy",
                "--store",
                &url,
                "--upstream",
                upstream,
                "--lease",
                "1s",
                "--wait",
                "500ms",
            ];
            self.add(name, &arguments)?;
        }
        Ok(())
    }

    /// Adds two `hapax relay` into this webhook.
    pub(crate) fn add_relays(&mut self, webhook: &str) -> anyhow::Result<()> {
        let url = self.store_url.clone();
        for name in ["relay-1", "relay-2"] {
            let arguments = [
                "relay",
                "--from",
                &url,
                "--to",
                webhook,
                "--allow-private",
                "--lease",
                "1s",
                "--backoff",
                "20ms",
                "--backoff-max",
                "200ms",
                "--max-attempts",
                "100000",
            ];
            self.add(name, &arguments)?;
        }
        Ok(())
    }

    fn add(&mut self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let node = HapaxNode::start(name, &self.hapax, arguments);
        node.wait_until_ready()?;
        self.nodes.push(node);
        Ok(())
    }

    /// The addresses of the nodes whose name begins so.
    pub(crate) fn addresses(&self, prefix: &str) -> Vec<String> {
        let named = self.nodes.iter().filter(|node| node.name.starts_with(prefix));
        named.filter_map(HapaxNode::address).collect()
    }

    /// The disk loses its power, and everything that ran on it dies and starts again.
    pub(crate) fn cut_power(&self) -> anyhow::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        self.note_crashes();
        let _nobody = disk.wait_for_users();
        let is_embedded = matches!(self.store, RunningStore::Sqlite(_));
        let nodes = || self.nodes.iter().filter(|_| is_embedded);
        nodes().for_each(|node| node.was_killed.store(true, Ordering::SeqCst));
        // A sync that runs while ext4 shuts down may return success although its journal was aborted, which no disk
        // does: first every system call ends, and nobody hears of it.
        nodes()
            .filter(|node| !node.program.has_ended())
            .for_each(|node| node.program.stop_all_threads());
        self.store.stop();
        disk.cut()?;
        nodes().for_each(|node| node.program.kill());
        self.store.kill();
        disk.restore()?;
        self.store.restart();
        nodes().for_each(|node| node.program.restart());
        for node in nodes() {
            node.wait_until_ready()?;
            node.was_killed.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Remembers processes that ended by themselves, before they are started again.
    pub(crate) fn note_crashes(&self) {
        for node in self.nodes.iter().filter(|node| node.has_crashed()) {
            // Once: it counts as killed until it listens again.
            node.was_killed.store(true, Ordering::SeqCst);
            let crash = format!("{}\n{}", node.name, node.program.log_tail());
            self.crashes.lock().unwrap_or_else(PoisonError::into_inner).push(crash);
        }
    }

    /// The processes that ended by themselves, with the ends of their logs.
    pub(crate) fn crashes(&self) -> Vec<String> {
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends all faults: everything runs and every connection works.
    pub(crate) fn heal(&self) -> anyhow::Result<()> {
        self.note_crashes();
        if let Some(link) = &self.store_link {
            link.resume();
        }
        for node in &self.nodes {
            if let Some(link) = &node.link {
                link.resume();
            }
            if node.program.has_ended() {
                node.program.restart();
            }
            node.wait_until_ready().context("after the faults")?;
        }
        Ok(())
    }
}
