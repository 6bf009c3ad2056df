//! `hapax relay`: drains the outbox into a broker, a webhook or hapax's own bus.

mod admin;
mod banner;
mod target;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use hapax::Store;
use hapax_relay::{Backoff, CloudEvents, Relay, RelayConfig};

use crate::health::Health;
use crate::net::{self, Limits, Server, Signals};
use crate::settings::{CommandSettings, RelaySettings, SecretUrl, SettingFlags, SettingSources};
use crate::{logging, measure};

/// A scraper, a prober and an operator need no more.
const ADMIN_CONNECTIONS: usize = 64;

/// Relays until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<RelaySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = RelaySettings::read(&sources)?;
    let (from, to) = ends(&settings)?;
    logging::start(settings.log, settings.log_level);
    sources.warn_of_unknown_variables();
    let mut signals = Signals::new()?;
    let meters = measure::start()?;
    let store = open(from, &settings).await?;
    let bus_store = match &settings.bus_store {
        Some(url) => open(url, &settings).await?,
        None => store.clone(),
    };
    let sink = target::open(to, &settings, bus_store).context("--to")?;
    let health = Health::default();
    // Makes the tables, where the store answers.
    health.watch(&store, settings.store_timeout, &meters).await?;
    hapax::sweep_forever(store.clone(), settings.sweep_interval);

    let relay = Relay::with(store.clone(), sink, relay_config(&settings));
    let sink = relay.health();
    let mut address = None;
    if let Some(listen) = &settings.admin {
        let listener = net::bind("admin", listen).await?;
        address = Some(listener.local_addr()?);
        let queues =
            listen.is_loopback().then(|| admin::queues(store, meters.clone())).transpose()?;
        let router = admin::router(admin::State { store: health.clone(), sink }, meters, queues);
        let limits = Limits {
            header: net_limit(&settings),
            idle: net_limit(&settings),
            connections: ADMIN_CONNECTIONS,
        };
        let server = Server::new(router, None, limits);
        tokio::spawn(async move { server.accept(listener).await });
    }
    let _ = banner::print(&settings, from, to, address);
    relay
        .run(async {
            signals.next().await;
            health.stop();
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

async fn open(url: &SecretUrl, settings: &RelaySettings) -> anyhow::Result<Arc<dyn Store>> {
    let opening =
        hapax::StoreConfig { call_limit: settings.store_timeout, ..hapax::StoreConfig::default() };
    let store = hapax::open(url.secret(), &opening).await;
    store.with_context(|| format!("the store {}", url.shown()))
}

/// Probers are quick, and there are few of them.
fn net_limit(settings: &RelaySettings) -> std::time::Duration {
    settings.send_timeout
}

/// Where rows come from and where they go.
fn ends(settings: &RelaySettings) -> anyhow::Result<(&SecretUrl, &SecretUrl)> {
    let from = settings.from.as_ref().context(
        "--from is needed: the store whose queue is drained, as in --from sqlite:shop.db",
    )?;
    let to = settings.to.as_ref();
    let to = to.with_context(|| format!("--to is needed: {}", target::EXPECTED))?;
    Ok((from, to))
}

/// How the relay works.
fn relay_config(settings: &RelaySettings) -> RelayConfig {
    let config = RelayConfig::new()
        .queue(settings.queue.clone())
        .lease(settings.lease)
        .max_attempts(u32::try_from(settings.max_attempts).unwrap_or(u32::MAX))
        .backoff(Backoff::new(settings.backoff, settings.backoff_max))
        .after_dead(settings.after_dead)
        .retention(settings.retention.0)
        .max_batch(settings.batch)
        .poll_interval(settings.poll)
        .send_timeout(settings.send_timeout)
        .store_timeout(settings.store_timeout * 2)
        .shutdown_timeout(settings.shutdown_timeout);
    if !settings.cloudevents {
        return config;
    }
    config.cloudevents(CloudEvents::new(&settings.cloudevents_source.0))
}
