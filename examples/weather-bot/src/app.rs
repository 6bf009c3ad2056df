//! Assembles the gateway, the bot and its databases, and serves them over HTTP.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hapax::queue::QueueName;
use hapax::{Severity, Store, StoreConfig};
use hapax_line::Gateway;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::bot::WeatherBot;
use crate::settings::WeatherBotSettings;
use crate::users::{self, Users};

/// How long a probe waits for the store or the database.
const PROBE: Duration = Duration::from_secs(1);
/// Interval at which expired rows are deleted and the metrics recorder is maintained.
const SWEEP: Duration = Duration::from_secs(60);
/// How long open connections may take to finish after the stop signal.
const GOODBYE: Duration = Duration::from_secs(10);

pub(crate) struct App {
    pub(crate) store: Arc<dyn Store>,
    users: Arc<dyn Users>,
    gateway: Gateway,
}

impl App {
    /// A store or a database that is not up yet is no error: the bot starts without it, and uses it
    /// as soon as it answers.
    pub(crate) async fn open(settings: WeatherBotSettings) -> anyhow::Result<Self> {
        let WeatherBotSettings { store, store_limit, database, database_limit, .. } = settings;
        let WeatherBotSettings { rules, secrets, line, weather, .. } = settings;
        let store = hapax::open(&store, &StoreConfig::default().redis_verbatim(["processing:*"]))
            .context("--store")?;
        examine(&store).await?;
        hapax::sweep_forever(store.clone(), SWEEP);
        let users = users::open(&database, database_limit).await.context("--database")?;
        let bot = WeatherBot::new(users.clone(), weather);
        let config = hapax_line::GatewayConfig::new()
            .rules(rules)
            // Two bots may share a store, so the queue has a name of its own.
            .queue(QueueName::new("weather-bot")?)
            .store_timeout(store_limit);
        let gateway = Gateway::new(store.clone(), secrets, line, Arc::new(bot), config);
        Ok(Self { store, users, gateway })
    }

    /// Serves until `stop`; then finishes open requests and the events being handled.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        meters: Option<PrometheusHandle>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        // Expose metrics on loopback only: the clients of a public webhook must not read them.
        let loopback = listener.local_addr()?.ip().is_loopback();
        let meters = meters.filter(|_| loopback);
        let router = router(&self, meters);
        let stopping = watch::Sender::new(false);
        let told = || {
            let mut stopping = stopping.subscribe();
            // `wait_for` cannot fail: the sender outlives this future.
            async move { drop(stopping.wait_for(|stopping| *stopping).await) }
        };
        let serving = axum::serve(listener, router).with_graceful_shutdown(told());
        let serving = async {
            let cut = async {
                told().await;
                sleep(GOODBYE).await;
            };
            tokio::select! {
                ended = serving => ended,
                () = cut => Ok(()),
            }
        };
        let told_to_stop = async {
            stop.await;
            stopping.send_replace(true);
        };
        let (served, (), ()) = tokio::join!(serving, self.gateway.run(told()), told_to_stop);
        Ok(served?)
    }
}

/// Logs the store's warnings, and fails if the store would break a guarantee. A store that is not
/// up yet is only logged.
async fn examine(store: &Arc<dyn Store>) -> anyhow::Result<()> {
    let findings = match hapax::with_timeout(PROBE * 2, store.examine()).await {
        Ok(findings) => findings,
        Err(error) if error.is_final() => return Err(error).context("--store"),
        Err(error) => {
            tracing::warn!(reason = error.label(), "starting without the store");
            return Ok(());
        }
    };
    for finding in findings {
        match finding.severity {
            Severity::Fine => {}
            Severity::Warn => {
                tracing::warn!(check = finding.check, fix = finding.fix, "{}", finding.detail);
            }
            Severity::Refuse => bail!("--store: {}. To fix it: {}", finding.detail, finding.fix),
        }
    }
    Ok(())
}

fn router(app: &App, meters: Option<PrometheusHandle>) -> Router {
    let router = Router::new()
        .route("/healthz", get(|| async { json(StatusCode::OK, r#"{"alive":true}"#) }))
        .route("/readyz", get(ready))
        .with_state((app.store.clone(), app.users.clone()))
        .route_service("/line/webhook", app.gateway.service());
    let Some(meters) = meters else { return router };
    let upkeep = meters.clone();
    tokio::spawn(async move {
        loop {
            sleep(SWEEP).await;
            upkeep.run_upkeep();
        }
    });
    let kind = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    router.route("/metrics", get(move || async move { (kind, meters.render()) }))
}

type Both = (Arc<dyn Store>, Arc<dyn Users>);

/// Reports the store and the database. The bot keeps answering without them, so this endpoint is
/// how an operator learns that one is down.
async fn ready(State((store, users)): State<Both>) -> Response {
    let (store, users) =
        tokio::join!(hapax::with_timeout(PROBE, store.ping()), timeout(PROBE, users.ping()));
    let reason = match (store, users) {
        (Ok(()), Ok(Ok(()))) => return json(StatusCode::OK, r#"{"ready":true}"#),
        (Err(_), _) => r#"{"ready":false,"reason":"the store gives no answer"}"#,
        _ => r#"{"ready":false,"reason":"the users' database gives no answer"}"#,
    };
    json(StatusCode::SERVICE_UNAVAILABLE, reason)
}

fn json(status: StatusCode, text: &'static str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], text).into_response()
}

/// Completes on `SIGTERM` or `SIGINT`.
pub(crate) fn signalled() -> anyhow::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut terminate, mut interrupt) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
