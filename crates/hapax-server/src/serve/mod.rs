//! `hapax serve`: the features over HTTP.

mod answer;
mod app;
mod auth;
mod banner;
mod body;
mod call;
mod commands;
mod docs;
mod fields;
mod guard;
mod headers;
mod limits;
mod listener;
mod local_only;
mod locks;
mod monitor;
mod observe;
mod openapi;
mod patience;
mod problem;
mod readiness;
mod records;
mod refusal;
mod router;
mod signals;
mod status_page;
mod strict_json;
mod system;

use std::process::ExitCode;

use anyhow::Context;
use hapax::meters;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::logging;
pub(crate) use crate::settings::Args;
use crate::settings::{Settings, Sources};
use app::App;
use listener::Server;

/// Serves until a signal says to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = Sources::gather(args)?;
    let settings = Settings::read(&sources)?;
    logging::start(settings.log, settings.log_level);
    for name in sources.unknown_variables() {
        tracing::warn!("the environment variable {name} is no setting of hapax");
    }
    let listener = listener::bind(&settings.listen).await?;
    let app = open(settings).await?;
    let examined = monitor::first_look(&app).await?;
    let _ = app.address.set(listener.local_addr()?);
    // Whoever started us may not listen; that is no reason not to serve.
    let _ = banner::print(&app, &sources);

    tokio::spawn(monitor::watch_store(app.clone(), examined));
    tokio::spawn(monitor::sweep(app.clone()));
    let mut signals = signals::Signals::new()?;
    let server = Server::new(app.clone(), router::new(&app));
    tokio::select! {
        () = server.accept(listener) => {}
        () = signals.next() => {}
    }
    stop(&app, server, signals).await;
    Ok(ExitCode::SUCCESS)
}

async fn open(settings: Settings) -> anyhow::Result<App> {
    let options = hapax::Options {
        call_limit: settings.store_timeout,
        redis_verbatim: settings.redis_verbatim.0.clone(),
    };
    let store = hapax::open(settings.store.secret(), &options).await;
    let store = store.with_context(|| format!("the store {}", settings.store.shown()))?;
    Ok(App::new(settings, store, meters()?))
}

fn meters() -> anyhow::Result<PrometheusHandle> {
    let builder =
        meters::HISTOGRAMS.iter().try_fold(PrometheusBuilder::new(), |builder, name| {
            builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), meters::BUCKETS)
        })?;
    let handle = builder.install_recorder()?;
    meters::describe();
    Ok(handle)
}

/// Ends in order: nothing new is accepted, who waits is told, who works may finish, up to a limit
/// or a second signal.
async fn stop(app: &App, server: Server, mut signals: signals::Signals) {
    app.readiness.set(readiness::State::Stopping);
    let limit = app.settings.shutdown_timeout;
    tracing::info!(
        "shutting down: requests in flight have {limit:?}; a second signal ends at once"
    );
    tokio::select! {
        () = server.drain() => tracing::info!("every request was answered"),
        () = tokio::time::sleep(limit) => tracing::warn!("some requests were not answered in time"),
        () = signals.next() => tracing::warn!("a second signal: ending now"),
    }
}
