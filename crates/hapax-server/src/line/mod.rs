//! `hapax line`: a gateway that makes any LINE bot safe against double taps and redelivery.
//!
//! ```text
//!   LINE ─► listener ─► webhook (body, problem documents) ─► Gateway (hapax-line) ─► upstream
//!             limits                                           queue, locks, retries    your bot
//! ```

mod admin;
mod banner;
mod config;
mod simulate;
mod webhook;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Subcommand;
use hapax::Store;
use hapax_line::Gateway;

use crate::health::Health;
use crate::net::{self, Limits, Server, Signals};
use crate::settings::{CommandSettings, LineSettings, SettingFlags, SettingSources};
use crate::{logging, measure};
use config::LineChannel;

/// A scraper, a prober and an operator need no more.
const ADMIN_CONNECTIONS: usize = 64;

/// The arguments of `hapax line`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LineArgs {
    #[command(flatten)]
    flags: SettingFlags<LineSettings>,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Be LINE at your desk: send signed events to a bot, and show what it answers.
    Simulate(simulate::SimulateArgs),
}

/// Takes webhooks in until a signal says to stop, or plays LINE's side.
pub(crate) async fn run(args: LineArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Some(Action::Simulate(args)) => simulate::run(args).await,
        None => serve(args.flags).await,
    }
}

async fn serve(flags: SettingFlags<LineSettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = LineSettings::read(&sources)?;
    let channel = LineChannel::new(&settings)?;
    let told = config::gateway_settings(&settings)?;
    logging::start(settings.log, settings.log_level);
    sources.warn_of_unknown_variables();
    net::make_room(settings.max_connections);
    let signals = Signals::new()?;
    let listener = net::bind("listen", &settings.listen).await?;
    let meters = measure::start()?;
    let store = open(&settings).await?;
    let health = Health::default();
    health.watch(&store, settings.store_timeout, &meters).await?;
    hapax::sweep_forever(store.clone(), settings.sweep_interval);

    let LineChannel { secrets, line, bot } = channel;
    let gateway = Gateway::new(store.clone(), secrets, line, Arc::new(bot), told);
    let limits = Limits {
        header: settings.header_timeout,
        idle: settings.idle_timeout,
        connections: settings.max_connections,
    };
    let admin = match &settings.admin {
        Some(listen) => {
            let listener = net::bind("admin", listen).await?;
            let address = listener.local_addr()?;
            let router = admin::router(listen, &health, &store, &meters)?;
            let limits = Limits { connections: ADMIN_CONNECTIONS, ..limits };
            let server = Server::new(router, None, limits);
            tokio::spawn(async move { server.accept(listener).await });
            Some(address)
        }
        None => None,
    };
    let webhooks = webhook::routes(gateway.clone(), settings.body_timeout);
    let router = admin::beside(webhooks, &settings.listen, &health, &store, &meters)?;
    let server = Server::new(router, None, limits);
    let _ = banner::print(&settings, &sources, listener.local_addr()?, admin);

    let working = tokio::spawn({
        let health = health.clone();
        async move { gateway.run(health.stopping()).await }
    });
    let stop = async || {
        health.stop();
        let _ = working.await;
    };
    // Events that could not be landed in their time are then still handed back.
    let limit = settings.shutdown_timeout + settings.store_timeout * 2;
    server.run(listener, signals, limit, stop).await;
    Ok(ExitCode::SUCCESS)
}

async fn open(settings: &LineSettings) -> anyhow::Result<Arc<dyn Store>> {
    let opening =
        hapax::StoreConfig { call_limit: settings.store_timeout, ..hapax::StoreConfig::default() };
    let store = hapax::open(settings.store.secret(), &opening).await;
    store.with_context(|| format!("the store {}", settings.store.shown()))
}
