//! The installation under test: a real store, real `hapax` processes, and a breakable connection before each.

mod node;
mod store;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, bail};
use hapax::{Store, StoreConfig};
use hapax_testkit::{Nats, TcpProxy};
use tempfile::TempDir;

pub(crate) use node::HapaxNode;
use node::{FakeClock, write_clock};
pub(crate) use store::RunningStore;
pub use store::StoreKind;

use crate::nemesis::FaultKind;
use crate::power_cut_disk::PowerCutDisk;
use crate::run::TortureConfig;

/// Where Debian's package `faketime` has its library for programs with threads.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// All processes of a run.
pub(crate) struct Installation {
    // Fields are dropped in this order: hapax ends before its store.
    pub(crate) nodes: Vec<HapaxNode>,
    /// The connections to the store's servers, where proxies can break them.
    pub(crate) store_links: Vec<TcpProxy>,
    pub(crate) store: RunningStore,
    /// The broker that relays send to, where there is one.
    pub(crate) broker: Option<Nats>,
    pub(crate) disk: Option<Arc<PowerCutDisk>>,
    hapax: PathBuf,
    /// An older `hapax` with which nodes change places.
    previous: Option<PathBuf>,
    /// The library that sets clocks, if a fault does.
    faketime: Option<PathBuf>,
    /// Through the connections that the faults break.
    pub(crate) store_url: String,
    crashes: Mutex<Vec<String>>,
    folder: TempDir,
}

impl Installation {
    /// Starts the store and two `hapax serve` on it.
    pub(crate) fn start(config: &TortureConfig) -> anyhow::Result<Self> {
        check_needs(config)?;
        let needs_disk = config.faults.iter().any(|fault| fault.needs_disk());
        let disk = needs_disk.then(PowerCutDisk::make).transpose()?.map(Arc::new);
        let folder = tempfile::tempdir()?;
        let data = disk.as_ref().map_or_else(|| folder.path().to_owned(), |disk| disk.path());
        let store = RunningStore::start(config.store, &data);
        let store_links: Vec<_> = store.ports_for_proxies().into_iter().map(TcpProxy::to).collect();
        let ports: Vec<u16> = store_links.iter().map(TcpProxy::port).collect();
        let store_url = store.url_through(&ports);
        let sets_clocks = config.faults.contains(&FaultKind::ClockStep);
        let mut installation = Self {
            nodes: Vec::new(),
            store_links,
            store,
            broker: None,
            disk,
            hapax: config.hapax.clone(),
            previous: config.previous.clone(),
            faketime: sets_clocks.then(|| PathBuf::from(FAKETIME)),
            store_url,
            crashes: Mutex::default(),
            folder,
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

    pub(crate) fn add(&mut self, name: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let clock = match &self.faketime {
            None => None,
            Some(library) => {
                let file = self.folder.path().join(format!("clock-of-{name}"));
                write_clock(&file, 0, "1")?;
                Some(FakeClock { library: library.clone(), file })
            }
        };
        let node = HapaxNode::start(name, &self.hapax, arguments, clock);
        node.wait_until_ready()?;
        self.nodes.push(node);
        Ok(())
    }

    /// The URL for transactions of clients: as for hapax, but not through a pooler, which their driver would have to know.
    pub(crate) fn transaction_url(&self) -> String {
        match &self.store {
            RunningStore::Pooled(..) => self.store.url(),
            _ => self.store_url.clone(),
        }
    }

    /// The store as a program of its own sees it.
    pub(crate) fn open_store(&self) -> anyhow::Result<Arc<dyn Store>> {
        Ok(hapax::open(&self.store.url(), &StoreConfig::default())?)
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
        let is_embedded = matches!(self.store, RunningStore::Sqlite(_));
        let nodes = || self.nodes.iter().filter(|_| is_embedded);
        let _faults: Vec<_> = nodes().map(|node| node.fault.lock()).collect();
        let _nobody = disk.wait_for_users();
        nodes().for_each(|node| node.was_killed.store(true, Ordering::SeqCst));
        // A sync that runs while ext4 shuts down may return success although its journal was aborted, which no disk
        // does: first every system call ends, and nobody hears of it.
        nodes()
            .filter(|node| !node.program.has_ended())
            .for_each(|node| node.program.stop_all_threads());
        let servers = self.store.servers();
        servers.iter().for_each(|server| server.stop());
        disk.cut()?;
        nodes().for_each(|node| node.program.kill());
        servers.iter().for_each(|server| server.kill());
        disk.restore()?;
        servers.iter().for_each(|server| server.restart());
        nodes().for_each(|node| node.program.restart());
        for node in nodes() {
            node.wait_until_ready()?;
            node.was_killed.store(false, Ordering::SeqCst);
        }
        Ok(())
    }

    /// The disk that was full has room again. A Redis whose append-only file cannot be written ends by itself.
    pub(crate) fn make_room(&self) -> anyhow::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        disk.empty()?;
        if let RunningStore::Redis(redis) = &self.store
            && !redis.is_awake()
        {
            redis.restart();
        }
        Ok(())
    }

    /// Restarts a killed node with the other of the two binaries; which one.
    pub(crate) fn change_binary(&self, node: &HapaxNode) -> Option<&'static str> {
        let is_older = node.change_binary(&self.hapax, self.previous.as_deref()?);
        Some(if is_older { "downgraded" } else { "upgraded" })
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
        self.store_links.iter().for_each(TcpProxy::resume);
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

/// Fails, with a message that says what is missing, if the machine or the store cannot do what the faults need.
fn check_needs(config: &TortureConfig) -> anyhow::Result<()> {
    let has = |kind| config.faults.contains(&kind);
    let embedded = matches!(config.store, StoreKind::Sqlite | StoreKind::Redis);
    if config.faults.iter().any(|fault| fault.needs_disk()) && !embedded {
        bail!("power cuts and full disks are for sqlite and redis");
    }
    if has(FaultKind::ClockStep) && !Path::new(FAKETIME).is_file() {
        bail!("clock-step needs {FAKETIME}, of Debian's package faketime");
    }
    if has(FaultKind::Upgrade) && config.previous.is_none() {
        bail!("upgrade needs an older hapax: --previous PATH");
    }
    Ok(())
}
