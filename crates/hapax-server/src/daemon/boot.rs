//! One way to start a daemon, and to run it until a signal stops it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax::Store;
use hapax::activity::{self, ActivityReporter};
use metrics_exporter_prometheus::PrometheusHandle;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::io_timeouts::IoTimeouts;
use super::listener::{HttpServer, RequestHandler, StopSignals, bind};
use super::readiness::Readiness;
use super::{logging, metrics, reporting, store_gauges};
use crate::background_writer::print_with_timeout;
use crate::settings::{
    CheckNames, CommandSettings, ListenAddress, LogFormat, LogLevel, NodeName, SecretUrl,
    SettingSources,
};

/// The settings that every daemon needs to start.
pub(crate) struct DaemonSettings<'a> {
    pub(crate) log: LogFormat,
    pub(crate) log_level: LogLevel,
    pub(crate) store: &'a SecretUrl,
    pub(crate) store_timeout: Duration,
    /// Patterns of keys that Redis stores verbatim; `None` for the default ones.
    pub(crate) redis_verbatim: Option<Vec<String>>,
    /// The checks whose refusal of the store is accepted.
    pub(crate) accept_risk: &'a CheckNames,
    /// How often the store is counted for the metrics; zero for never.
    pub(crate) gauge_interval: Duration,
    /// What the process is on the console: `api`, `proxy`, `relay` or `line`.
    pub(crate) edge: &'static str,
    /// The name of the process; random without one.
    pub(crate) node: Option<&'a NodeName>,
    /// How often activity is reported; zero for never.
    pub(crate) report_interval: Duration,
    pub(crate) sweep_interval: Duration,
    /// The address of the main listener, where the daemon has one.
    pub(crate) listen: Option<&'a ListenAddress>,
    pub(crate) timeouts: IoTimeouts,
    pub(crate) max_connections: usize,
}

/// Collects the settings of a daemon with a listener: their fields have the same names everywhere.
macro_rules! daemon_settings {
    ($settings:expr, $edge:literal) => {
        $crate::daemon::DaemonSettings {
            log: $settings.log,
            log_level: $settings.log_level,
            store: &$settings.store,
            store_timeout: $settings.store_timeout,
            redis_verbatim: None,
            accept_risk: &$settings.accept_risk,
            gauge_interval: $settings.gauge_interval.0,
            edge: $edge,
            node: $settings.node.as_ref(),
            report_interval: $settings.report_interval.0,
            sweep_interval: $settings.sweep_interval,
            listen: Some(&$settings.listen),
            timeouts: $crate::daemon::IoTimeouts {
                header: $settings.header_timeout,
                idle: $settings.idle_timeout,
            },
            max_connections: $settings.max_connections,
        }
    };
}
pub(crate) use daemon_settings;

/// A started daemon: its store is open and watched, its metrics are recorded, its listener is
/// bound.
pub(crate) struct Daemon {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: PrometheusHandle,
    /// The name of this process.
    pub(crate) node: Arc<str>,
    /// Reports the activity of this process; `None` where that is turned off.
    pub(crate) reporter: Option<ActivityReporter>,
    pub(super) timeouts: IoTimeouts,
    max_connections: usize,
    listener: Option<TcpListener>,
    signals: StopSignals,
}

impl Daemon {
    /// Starts everything that can fail because of the settings. A store that does not answer yet is
    /// no failure; one that must not be used is.
    pub(crate) async fn boot<S: CommandSettings>(
        sources: &SettingSources<S>,
        settings: DaemonSettings<'_>,
    ) -> anyhow::Result<Self> {
        logging::start(settings.log, settings.log_level);
        sources.warn_of_unknown_variables();
        raise_file_limit(settings.max_connections);
        let signals = StopSignals::new()?;
        let listener = match settings.listen {
            Some(address) => Some(bind("listen", address).await?),
            None => None,
        };
        let metrics = metrics::start()?;
        let verbatim = settings.redis_verbatim.clone();
        let store = open_store(settings.store, settings.store_timeout, verbatim)?;
        let readiness = Readiness::default();
        let accepted = settings.accept_risk.0.clone();
        readiness.watch(&store, settings.store_timeout, accepted, &metrics).await?;
        store_gauges::spawn(store.clone(), readiness.clone(), settings.gauge_interval);
        hapax::sweep_forever(store.clone(), settings.sweep_interval);
        let node = match settings.node {
            Some(NodeName(name)) => name.clone(),
            None => activity::random_node_name(command_of(settings.edge)),
        };
        let reporter = reporting::start(&store, &readiness, &settings, &node)?;
        let (timeouts, max_connections) = (settings.timeouts, settings.max_connections);
        Ok(Self {
            store,
            readiness,
            metrics,
            node: node.into(),
            reporter,
            timeouts,
            max_connections,
            listener,
            signals,
        })
    }

    pub(crate) fn address(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.listener.as_ref().context("the daemon has no listener")?.local_addr()?)
    }

    /// Serves until a signal, then shuts down in order: nothing new is accepted, `/readyz` turns
    /// red, `stop` runs, and requests in flight may finish within the timeout.
    pub(crate) async fn serve<H: RequestHandler>(
        self,
        handler: H,
        tls: Option<TlsAcceptor>,
        shutdown_timeout: Duration,
        stop: impl AsyncFnOnce(),
    ) -> anyhow::Result<()> {
        let (listener, reporter) = (self.listener, self.reporter);
        let listener = listener.context("the daemon has no listener")?;
        let server = HttpServer::new(handler, tls, self.timeouts, self.max_connections);
        let readiness = self.readiness;
        let stop = async || {
            readiness.stop();
            stop().await;
        };
        server.run(listener, self.signals, shutdown_timeout, stop).await;
        if let Some(reporter) = reporter {
            reporter.stop().await;
        }
        Ok(())
    }

    /// Completes at the first signal, with `/readyz` turned red.
    pub(crate) async fn stopped(mut self) {
        self.signals.next().await;
        self.readiness.stop();
    }
}

/// The command of an edge.
fn command_of(edge: &'static str) -> &'static str {
    if edge == "api" { "serve" } else { edge }
}

/// The keys that the seeds' programs share with hapax on Redis; the default of `redis.verbatim`.
pub(crate) const REDIS_VERBATIM: [&str; 2] = ["processing:*", "user:*:last_transaction"];

/// A store configuration with the defaults of the commands that take `--store`.
pub(crate) fn default_store_config() -> hapax::StoreConfig {
    hapax::StoreConfig::default().redis_verbatim(REDIS_VERBATIM)
}

/// Opens the store of a URL, with this timeout for one call.
pub(crate) fn open_store(
    url: &SecretUrl,
    timeout: Duration,
    redis_verbatim: Option<Vec<String>>,
) -> anyhow::Result<Arc<dyn Store>> {
    let patterns = redis_verbatim.unwrap_or_else(|| REDIS_VERBATIM.map(str::to_owned).to_vec());
    let options = hapax::StoreConfig::default().timeout(timeout).redis_verbatim(patterns);
    // A misspelt name must not pass for an empty outbox in silence.
    if let Some(path) = missing_file(url.secret()) {
        tracing::info!("there is no file {} yet: it is created", path.display());
    }
    let store = hapax::open(url.secret(), &options);
    store.with_context(|| format!("the store {}", url.shown()))
}

/// The file of a SQLite URL, if it does not exist.
pub(crate) fn missing_file(url: &str) -> Option<&Path> {
    let path = url.strip_prefix("sqlite:")?;
    let path = Path::new(path.strip_prefix("//").unwrap_or(path));
    (!path.exists()).then_some(path)
}

/// Raises the limit of open files to what the system allows, because each connection is one file.
/// Warns where that is below the configured number of connections.
fn raise_file_limit(connections: usize) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    let limit = if raised { maximum } else { current };
    if limit.is_some_and(|limit| limit < connections as u64) {
        let limit = limit.unwrap_or_default();
        tracing::warn!(
            limit,
            connections,
            "the system allows fewer open files than connections are configured; raise it (ulimit -n)"
        );
    }
}

/// Prints a title and a table of labels and values. A failure to print is no reason not to serve, nor is an output that
/// nobody reads.
pub(crate) fn print_banner(
    out: impl Write + Send + 'static,
    title: &str,
    lines: &[(&str, String)],
) {
    let mut text = format!("hapax {} {title}\n", env!("CARGO_PKG_VERSION"));
    for (label, value) in lines {
        text.push_str(&format!("  {label:<9} {value}\n"));
    }
    print_with_timeout(out, text);
}

/// The line about `--admin`, and the routes that are served there.
pub(crate) fn admin_line(admin: Option<SocketAddr>, routes: &str) -> (&'static str, String) {
    let value = match admin {
        Some(admin) => format!("http://{admin} ({routes})"),
        None => "none; --admin ADDR serves /healthz, /readyz, /metrics".to_owned(),
    };
    ("admin", value)
}
