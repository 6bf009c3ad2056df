//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► gateway (which route) ─► Idempotency (hapax-http) ─► upstream (headers, client)
//!     TLS, limits                          claims, replays             pool, time limits, tunnels
//! ```

pub(crate) mod admin;
mod answer;
mod banner;
mod client;
mod failure;
mod fit;
mod forward;
mod gateway;
mod quiet;
mod route;
mod tls;
mod tunnel;
mod upstream;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use hapax::Claims;

use crate::health::Health;
use crate::net::{self, BoxError, Limits, Server, Signals};
use crate::settings::{CommandSettings, ProxySettings, SettingFlags, SettingSources};
use crate::{logging, measure};
use fit::Fit;
use gateway::Gateway;
use upstream::Manner;

/// A scraper and a prober need no more.
const ADMIN_CONNECTIONS: usize = 64;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(flags: SettingFlags<ProxySettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let options = ProxySettings::read(&sources)?;
    let routes = route::routes(&options)?;
    logging::start(options.log, options.log_level);
    sources.warn_of_unknown_variables();
    let signals = Signals::new()?;
    let listener = net::bind("listen", &options.listen).await?;
    let meters = measure::start()?;
    let opening =
        hapax::StoreConfig { call_limit: options.store_timeout, ..hapax::StoreConfig::default() };
    let store = hapax::open(options.store.secret(), &opening).await;
    let store = store.with_context(|| format!("the store {}", options.store.shown()))?;
    let health = Health::default();
    health.watch(&store, options.store_timeout, &meters).await?;

    let limits = Limits {
        header: options.header_timeout,
        idle: options.idle_timeout,
        connections: options.max_connections,
    };
    let admin = match &options.admin {
        Some(address) => {
            let listener = net::bind("admin", address).await?;
            let address = listener.local_addr()?;
            let router = admin::router(health.clone(), meters);
            let limits = Limits { connections: ADMIN_CONNECTIONS, ..limits };
            let server = Server::new(router, None, limits);
            tokio::spawn(async move { server.accept(listener).await });
            Some(address)
        }
        None => None,
    };
    hapax::sweep_forever(store.clone(), options.sweep_interval);

    let tls_upstream = routes.iter().any(|route| route.target.is_tls());
    let client = client::new(&options, tls_upstream)?;
    let manner = Manner {
        http2: options.upstream_http2,
        host: options.host,
        trust_forwarded: options.trust_forwarded,
    };
    let fit: Arc<dyn Claims> = Arc::new(Fit { store, health: health.clone() });
    let gateway = Gateway::new(&routes, &fit, &client, manner, options.body_timeout);
    let server = Server::new(gateway.clone(), tls::for_clients(&options)?, limits);
    let _ = banner::print(&options, &routes, listener.local_addr()?, admin);
    let stop = async || {
        health.stop();
        gateway.drain().await;
    };
    server.run(listener, signals, options.shutdown_timeout.0, stop).await;
    Ok(ExitCode::SUCCESS)
}
