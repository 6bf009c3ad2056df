//! `hapax serve`: the features over HTTP.

mod api;
mod app;
mod banner;
pub(crate) mod in_process;
mod pages;
pub(crate) mod problem;
mod readiness;
mod refusal;
mod request;
mod response;
pub(crate) mod router;
mod sse;
pub(crate) mod system;

use std::process::ExitCode;

use anyhow::Context;
use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::{Request, Response};
use tower::ServiceExt;

use crate::ingest::{self, IngestConfig};
use crate::net::{self, Answers, InFlight, Limits, Refusals, Server, Signals};
use crate::settings::{CommandSettings, ServeSettings, SettingFlags, SettingSources};
use crate::{logging, measure};
use app::AppState;
use request::auth::AccessPolicy;
pub(crate) use request::body;
pub(crate) use sse::signed_link;

/// Serves until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ServeSettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ServeSettings::read(&sources)?;
    logging::start(settings.log, settings.log_level);
    sources.warn_of_unknown_variables();
    net::make_room(settings.max_connections);
    let signals = Signals::new()?;
    let listener = net::bind("listen", &settings.listen).await?;
    let app = open(settings).await?;
    app.readiness.watch(&app.store, app.settings.store_timeout, &app.meters).await?;
    let _ = app.address.set(listener.local_addr()?);
    // Whoever started us may not listen; that is no reason not to serve.
    let _ = banner::print(&app, &sources);

    ingest(&app, &sources)?;
    hapax::sweep_forever(app.store.clone(), app.settings.sweep_interval);
    let limits = Limits {
        header: app.settings.header_timeout,
        idle: app.settings.idle_timeout,
        connections: app.settings.max_connections,
    };
    let server = Server::new(router::new(&app), None, limits);
    let stop = async || {
        app.readiness.stop();
        app.bus.stop();
    };
    server.run(listener, signals, app.settings.shutdown_timeout, stop).await;
    Ok(ExitCode::SUCCESS)
}

/// Starts the router, where there is something to route.
fn ingest(app: &AppState, sources: &SettingSources<ServeSettings>) -> anyhow::Result<()> {
    let settings = &app.settings;
    if settings.ingest.0.is_empty() {
        return Ok(());
    }
    // REDIS_URL alone does not make streams live elsewhere than in a store that is a Redis.
    let said = sources.origin("ingest-from").is_some_and(|place| place != "REDIS_URL");
    let from = match (&settings.ingest_from, settings.store.secret()) {
        (Some(url), _) if said => url.secret(),
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

async fn open(settings: ServeSettings) -> anyhow::Result<AppState> {
    let options = hapax::StoreConfig {
        call_limit: settings.store_timeout,
        redis_verbatim: settings.redis_verbatim.0.clone(),
    };
    let store = hapax::open(settings.store.secret(), &options).await;
    let store = store.with_context(|| format!("the store {}", settings.store.shown()))?;
    let access = AccessPolicy::new(&settings.tokens);
    Ok(AppState::new(settings, access, store, measure::start()?))
}

impl Answers for Router {
    type Body = Body;
    const REFUSALS: Option<Refusals> = Some(refusal::REFUSALS);

    async fn answer(&self, request: Request<Incoming>, in_flight: InFlight) -> Response<Body> {
        let response = self.clone().oneshot(request.map(Body::new)).await;
        sse::keep_in_flight(response.unwrap_or_else(|never| match never {}), in_flight)
    }
}
