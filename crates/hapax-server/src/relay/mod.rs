//! `hapax relay`: drains the outbox into a broker, a webhook or hapax's own bus.

mod admin;
mod banner;
mod settings;
mod target;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use hapax::Store;
use hapax_relay::Relay;

use crate::health::Health;
use crate::net::{self, Limits, Server, Signals};
use crate::settings::StoreUrl;
use crate::{logging, measure};
use settings::Settings;
pub(crate) use settings::{Args, Sources, TABLE};

/// A scraper, a prober and an operator need no more.
const ADMIN_CONNECTIONS: usize = 64;

/// Relays until a signal says to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = Sources::gather(args)?;
    let settings = Settings::read(&sources)?;
    let (from, to) = settings.ends()?;
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

    let relay = Relay::with(store.clone(), sink, settings.relay());
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

async fn open(url: &StoreUrl, settings: &Settings) -> anyhow::Result<Arc<dyn Store>> {
    let opening =
        hapax::Options { call_limit: settings.store_timeout, ..hapax::Options::default() };
    let store = hapax::open(url.secret(), &opening).await;
    store.with_context(|| format!("the store {}", url.shown()))
}

/// Probers are quick, and there are few of them.
fn net_limit(settings: &Settings) -> std::time::Duration {
    settings.send_timeout
}
