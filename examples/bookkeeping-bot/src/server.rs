//! The bot as a program: webhook, health checks and metrics on one listener.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use hapax::queue::QueueName;
use hapax::{Severity, Store, StoreConfig, metric_names, with_timeout};
use hapax_line::{ChannelSecrets, Gateway, GatewayConfig, LineClient, LockRules};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::bot::BookkeepingBot;
use crate::last::LastTransaction;
use crate::ledger::{self, Ledger};
use crate::moment::LocalTime;
use crate::reader::{OpenAi, Otherwise, Reader, RuleReader};
use crate::settings::BookkeepingBotArgs;

/// Limit for a readiness check of the store.
const PING: Duration = Duration::from_secs(2);
/// Interval at which expired records and old messages are deleted.
const SWEEP: Duration = Duration::from_secs(60);
/// Interval of the metrics recorder's upkeep.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the metrics recorder; call it once per process.
pub fn measure() -> anyhow::Result<PrometheusHandle> {
    let builder =
        metric_names::HISTOGRAMS.iter().try_fold(PrometheusBuilder::new(), |builder, name| {
            builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), metric_names::BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    metric_names::describe_metrics();
    Ok(handle)
}

/// Starts logging to standard error.
pub fn log() {
    crate::logging::start();
}

/// Serves until `stop`, then finishes the events being handled.
///
/// # Errors
/// If a setting is wrong, or the ledger cannot be opened.
pub async fn serve(
    args: &BookkeepingBotArgs,
    listener: TcpListener,
    meters: PrometheusHandle,
    stop: impl Future<Output = ()> + Send,
) -> anyhow::Result<()> {
    let limit = args.store_timeout();
    let options = StoreConfig::default().timeout(limit).redis_verbatim(["user:*:last_transaction"]);
    let store = hapax::open(&args.store, &options).context("--store")?;
    examine(&store, limit * 2).await?;
    let ledger = ledger::open(&args.database).await.context("--database")?;
    hapax::sweep_forever(store.clone(), SWEEP);
    // Sweep the ledger's database too, because the inbox is there.
    hapax::sweep_forever(hapax::open(&args.database, &StoreConfig::default())?, SWEEP);

    let gateway = gateway(args, &store, &ledger)?;
    let loopback = listener.local_addr()?.ip().is_loopback();
    let router = router(&gateway, store, ledger, loopback.then_some(meters));
    let (stopping, mut told) = watch::channel(false);
    let drained = async move {
        let _ = told.wait_for(|stop| *stop).await;
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(drained);
    let server = tokio::spawn(server.into_future());
    gateway.run(stop).await;
    let _ = stopping.send(true);
    // Idle connections may stay open, so do not wait for them longer than this.
    let _ = tokio::time::timeout(Duration::from_secs(2), server).await;
    Ok(())
}

fn gateway(
    args: &BookkeepingBotArgs,
    store: &Arc<dyn Store>,
    ledger: &Arc<dyn Ledger>,
) -> anyhow::Result<Gateway> {
    let reader: Arc<dyn Reader> = match args.openai() {
        Some(settings) => Arc::new(Otherwise(OpenAi::new(&settings)?, RuleReader)),
        None => Arc::new(RuleReader),
    };
    let last = LastTransaction::new(store.clone(), args.ttl());
    let time = LocalTime::new(Arc::new(hapax::SystemClock), args.utc_offset);
    let bot = Arc::new(BookkeepingBot::new(reader, ledger.clone(), last, time));
    let secret = args.channel_secret.as_deref().context("LINE_CHANNEL_SECRET is missing")?;
    let token =
        args.channel_access_token.as_deref().context("LINE_CHANNEL_ACCESS_TOKEN is missing")?;
    let secrets = ChannelSecrets::new(secret).context("LINE_CHANNEL_SECRET")?;
    let client = LineClient::new(&args.line_api_base, token).context("LINE_API_BASE")?;
    // No locks: versions protect concurrent messages of one user from each other.
    let config = GatewayConfig::new()
        .rules(LockRules::unlocked())
        // Two bots may share a store, so the queue has a name of its own.
        .queue(QueueName::new("bookkeeping-bot")?)
        .lease(Duration::from_secs(args.lease))
        .store_timeout(Duration::from_millis(args.store_budget_ms));
    Ok(Gateway::new(store.clone(), secrets, client, bot, config))
}

/// Logs the store's warnings, and fails if the store would break a guarantee. A store that is not
/// up yet is only logged.
async fn examine(store: &Arc<dyn Store>, limit: Duration) -> anyhow::Result<()> {
    let findings = match with_timeout(limit, store.examine()).await {
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
            Severity::Refuse => {
                anyhow::bail!("the store must not be used like this: {detail}. {fix}")
            }
        }
    }
    Ok(())
}

fn router(
    gateway: &Gateway,
    store: Arc<dyn Store>,
    ledger: Arc<dyn Ledger>,
    meters: Option<PrometheusHandle>,
) -> Router {
    let ready = move || ready(store.clone(), ledger.clone());
    let router = Router::new()
        .route_service("/line/webhook", gateway.service())
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready));
    // `meters` is `Some` only if the listener is on loopback.
    let Some(meters) = meters else { return router };
    let tidied = meters.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            tidied.run_upkeep();
        }
    });
    let exposition = move || async move {
        ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], meters.render())
    };
    router.route("/metrics", get(exposition))
}

async fn ready(store: Arc<dyn Store>, ledger: Arc<dyn Ledger>) -> impl IntoResponse {
    let red = |reason| (StatusCode::SERVICE_UNAVAILABLE, reason);
    if with_timeout(PING, store.ping()).await.is_err() {
        return red("the store does not answer\n");
    }
    if ledger.ping().await.is_err() {
        return red("the ledger does not answer\n");
    }
    (StatusCode::OK, "ready\n")
}
