//! A LINE bot as a program: webhook, health checks and metrics on one listener.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::FutureExt;
use hapax::{Severity, Store, metric_names, with_timeout};
use hapax_line::Gateway;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

use crate::database::Database;

/// How long a health check waits for the store or the database.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval at which expired rows are deleted from a store.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of the metrics recorder's upkeep.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// How long open connections may take to finish after the stop signal.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts logging to standard error, panics included, with the bot's own lines under `target`. No
/// line identifies a user.
pub fn start_logging(target: &str) {
    let filter = Targets::new()
        // Debug output of drivers may contain keys and values.
        .with_default(LevelFilter::WARN)
        .with_target("hapax", LevelFilter::INFO)
        .with_target(target, LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(false);
    // If the process has a subscriber already, keep it.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    std::panic::set_hook(Box::new(|panic| {
        // Log the panic's location only: its message may contain a key or a value.
        let place = panic.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(place, "a bug: the code panicked");
    }));
}

/// Installs the recorder of hapax's metrics and of the bot's own histograms; once per process.
pub fn install_metrics(histograms: &[&str]) -> anyhow::Result<PrometheusHandle> {
    let histograms = metric_names::HISTOGRAMS.iter().chain(histograms);
    let builder = histograms.copied().try_fold(PrometheusBuilder::new(), |builder, name| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), metric_names::BUCKETS)
    })?;
    let handle = builder.install_recorder()?;
    metric_names::describe_metrics();
    Ok(handle)
}

/// Completes on `SIGTERM` or `SIGINT`.
pub fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Logs the store's warnings, and fails if the store would break a guarantee. A store that is not
/// up yet is only logged.
pub async fn examine(store: &Arc<dyn Store>) -> anyhow::Result<()> {
    let findings = match with_timeout(PROBE_TIMEOUT, store.examine()).await {
        Ok(findings) => findings,
        Err(error) if error.is_final() => return Err(error.into()),
        Err(error) => {
            tracing::warn!(reason = error.label(), "starting without the store");
            return Ok(());
        }
    };
    for finding in findings {
        let (detail, fix) = (&finding.detail, &finding.fix);
        match finding.severity {
            Severity::Fine => {}
            Severity::Warn => tracing::warn!(check = finding.check, fix, "{detail}"),
            Severity::Refuse => bail!("{detail}. To fix it: {fix}"),
        }
    }
    Ok(())
}

/// A bot with its databases.
pub struct BotServer {
    /// Takes the webhooks, and hands the events to the bot.
    pub gateway: Gateway,
    /// Where events wait; for the health check.
    pub store: Arc<dyn Store>,
    /// The bot's own database; for the health check.
    pub database: Database,
    /// The recorder that `/metrics` renders.
    pub metrics: Option<PrometheusHandle>,
}

impl BotServer {
    /// Serves until `stop`; then finishes open requests and the events being handled.
    pub async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        // Expose metrics on loopback only: the clients of a public webhook must not read them.
        let metrics = self.metrics.clone().filter(|_| is_loopback(&listener));
        let router = self.router(metrics);
        let stop = stop.boxed().shared();
        let serving = axum::serve(listener, router).with_graceful_shutdown(stop.clone());
        let serving = async {
            tokio::select! {
                ended = serving.into_future() => ended,
                () = stop.clone().then(|()| sleep(SHUTDOWN_TIMEOUT)) => Ok(()),
            }
        };
        let (served, ()) = tokio::join!(serving, self.gateway.run(stop.clone()));
        Ok(served?)
    }

    fn router(&self, metrics: Option<PrometheusHandle>) -> Router {
        let (store, database) = (self.store.clone(), self.database.clone());
        let router = Router::new()
            .route_service("/line/webhook", self.gateway.service())
            .route("/healthz", get(|| async { json(StatusCode::OK, r#"{"alive":true}"#) }))
            .route("/readyz", get(move || ready(store.clone(), database.clone())));
        let Some(metrics) = metrics else { return router };
        let upkeep = metrics.clone();
        tokio::spawn(async move {
            loop {
                sleep(UPKEEP_INTERVAL).await;
                upkeep.run_upkeep();
            }
        });
        let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
        router.route("/metrics", get(move || async move { (kind, metrics.render()) }))
    }
}

fn is_loopback(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|address| address.ip().is_loopback())
}

/// Reports the store and the database. The bot keeps answering without them, so this endpoint is
/// how an operator learns that one is down.
async fn ready(store: Arc<dyn Store>, database: Database) -> Response {
    let store = with_timeout(PROBE_TIMEOUT, store.ping());
    let (store, database) = tokio::join!(store, timeout(PROBE_TIMEOUT, database.ping()));
    let reason = match (store, database) {
        (Ok(()), Ok(Ok(()))) => return json(StatusCode::OK, r#"{"ready":true}"#),
        (Err(_), _) => r#"{"ready":false,"reason":"the store gives no answer"}"#,
        _ => r#"{"ready":false,"reason":"the database gives no answer"}"#,
    };
    json(StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn json(status: StatusCode, text: &'static str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}
