//! `hapax serve`: the features over HTTP.

use std::process::ExitCode;

use crate::api::{self, AccessPolicy, AppState};
use crate::daemon::{Daemon, DaemonSettings, daemon_settings, fair_store, print_banner};
use crate::ingest::{self, IngestConfig};
use crate::settings::{CommandSettings, ServeSettings, SettingFlags, SettingSources};

/// Serves until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ServeSettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = ServeSettings::read(&sources)?;
    let redis_verbatim = Some(settings.redis_verbatim.0.clone());
    let boot = DaemonSettings { redis_verbatim, ..daemon_settings!(settings, "api") };
    let daemon = Daemon::boot(&sources, boot).await?;
    let access = AccessPolicy::new(&settings.tokens);
    let (store, metrics) = (daemon.store.clone(), daemon.metrics.clone());
    let store = fair_store(store, settings.store_calls, settings.store_timeout);
    let node = daemon.node.clone();
    let app = AppState::new(settings, access, store, metrics, daemon.readiness.clone(), node);
    let _ = app.address.set(daemon.address()?);
    print(&app, &sources);
    if let Some(warning) = app.settings.connection_warning() {
        tracing::warn!("{warning}");
    }

    ingest(&app, &sources)?;
    let stop = async || {
        app.tasks.stop_all().await;
        app.bus.stop();
    };
    daemon.serve(api::router(&app), None, app.settings.shutdown_timeout, stop).await?;
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

/// Prints the address, the store, the callers, and one line to try.
fn print(app: &AppState, sources: &SettingSources<ServeSettings>) {
    let store = app.settings.store.shown();
    let origin = sources.origin("store").unwrap_or_default();
    let callers = match &app.access {
        AccessPolicy::LocalOnly(_) => "this machine only, as no tokens are configured".to_owned(),
        AccessPolicy::Tokens(rules) => format!("whoever has one of {} tokens", rules.len()),
    };
    let served = "/v1/locks, /v1/records, /v1/commands, /v1/inbox, /v1/events, /v1/jobs, \
                  /v1/queues; /docs, /metrics";
    let lines = [
        ("store", format!("{store} (from {origin})")),
        ("callers", callers),
        ("serves", served.to_owned()),
        ("try", app.example()),
    ];
    print_banner(std::io::stdout(), &format!("listens on http://{}", app.shown_address()), &lines);
}
