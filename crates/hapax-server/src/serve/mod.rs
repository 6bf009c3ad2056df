//! `hapax serve`: the features over HTTP.

mod api;
mod app;
mod banner;
pub(crate) mod in_process;
mod pages;
pub(crate) mod problem;
mod refusal;
mod request;
mod response;
pub(crate) mod router;
pub(crate) mod sse;
pub(crate) mod system;

use std::process::ExitCode;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tower::ServiceExt;

use crate::daemon::{
    Daemon, DaemonSettings, EarlyRefusals, InFlightGuard, RequestHandler, daemon_settings,
};
use crate::ingest::{self, IngestConfig};
use crate::settings::{CommandSettings, ServeSettings, SettingFlags, SettingSources};
use app::AppState;
use request::auth::AccessPolicy;
pub(crate) use request::body;
pub(crate) use sse::signed_link;

/// Serves until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ServeSettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ServeSettings::read(&sources)?;
    let redis_verbatim = Some(settings.redis_verbatim.0.clone());
    let boot = DaemonSettings { redis_verbatim, ..daemon_settings!(settings) };
    let daemon = Daemon::boot(&sources, boot).await?;
    let access = AccessPolicy::new(&settings.tokens);
    let (store, metrics) = (daemon.store.clone(), daemon.metrics.clone());
    let app = AppState::new(settings, access, store, metrics, daemon.readiness.clone());
    let _ = app.address.set(daemon.address()?);
    banner::print(&app, &sources);

    ingest(&app, &sources)?;
    let stop = async || app.bus.stop();
    daemon.serve(router::new(&app), None, app.settings.shutdown_timeout, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Starts the ingest router where domains are configured.
fn ingest(app: &AppState, sources: &SettingSources<ServeSettings>) -> anyhow::Result<()> {
    let settings = &app.settings;
    if settings.ingest.0.is_empty() {
        return Ok(());
    }
    // REDIS_URL gives way to a store that is a Redis itself.
    let is_explicit = sources.origin("ingest-from").is_some_and(|origin| origin != "REDIS_URL");
    let from = match (&settings.ingest_from, settings.store.secret()) {
        (Some(url), _) if is_explicit => url.secret(),
        (_, store) if store.starts_with("redis") => store,
        (Some(url), _) => url.secret(),
        (None, _) => anyhow::bail!(
            "--ingest reads streams on Redis, and the store is none: say where they are with \
             --ingest-from or REDIS_URL"
        ),
    };
    let config = IngestConfig {
        domains: settings.ingest.clone(),
        group: settings.group.0.clone(),
        consumer: ingest::default_consumer_name(settings.listen.text()),
        channel: settings.publish_channel.as_ref().map(|name| name.0.clone()),
        max_deliveries: settings.ingest_deliveries as u64,
        reclaim_after: settings.ingest_reclaim,
        state_retention: settings.event_retention,
        max_stall: settings.event_tail_timeout,
        store_timeout: settings.store_timeout,
    };
    ingest::start(&app.bus, config, from, &app.readiness)
}

impl RequestHandler for Router {
    type Body = Body;
    const REFUSALS: Option<EarlyRefusals> = Some(refusal::REFUSALS);

    async fn handle(&self, request: Request<Incoming>, in_flight: InFlightGuard) -> Response<Body> {
        let response = self.clone().oneshot(request.map(Body::new)).await;
        sse::keep_in_flight(response.unwrap_or_else(|never| match never {}), in_flight)
    }
}
