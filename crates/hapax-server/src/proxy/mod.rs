//! `hapax proxy`: the `Idempotency-Key` layer in front of any HTTP service.
//!
//! ```text
//!   listener ─► gateway (which route) ─► Idempotency (hapax-http) ─► upstream (headers, client)
//!     TLS, limits                          claims, replays             pool, time limits, tunnels
//! ```

mod admin;
mod answer;
mod banner;
mod client;
mod failure;
mod forward;
mod gateway;
mod quiet;
mod settings;
mod target;
mod tls;
mod tunnel;
mod upstream;

use std::process::ExitCode;

use anyhow::Context;

use crate::health::Health;
use crate::logging;
use crate::net::{self, BoxError, Limits, Server, Signals};
use gateway::Gateway;
pub(crate) use settings::{Args, TABLE};
use settings::{Settings, Sources};
use upstream::Manner;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = Sources::gather(args)?;
    let settings = Settings::read(&sources)?;
    let options = &settings.options;
    logging::start(options.log, options.log_level);
    sources.warn_of_unknown_variables();
    let signals = Signals::new()?;
    let listener = net::bind("listen", &options.listen).await?;
    let meters = admin::meters()?;
    let limits = hapax::Options { call_limit: options.store_timeout, ..hapax::Options::default() };
    let store = hapax::open(options.store.secret(), &limits).await;
    let store = store.with_context(|| format!("the store {}", options.store.shown()))?;
    let health = Health::default();
    health.watch(&store, options.store_timeout, &meters).await?;

    let admin = match &options.admin {
        Some(address) => {
            let listener = net::bind("admin", address).await?;
            let address = listener.local_addr()?;
            let router = admin::router(health.clone(), meters);
            tokio::spawn(async move { axum::serve(listener, router).await });
            Some(address)
        }
        None => None,
    };
    hapax::sweep_forever(store.clone(), options.sweep_interval);

    let tls_upstream = settings.routes.iter().any(|route| route.target.is_tls());
    let client = client::new(options, tls_upstream)?;
    let manner = Manner {
        http2: options.upstream_http2,
        host: options.host,
        trust_forwarded: options.trust_forwarded,
    };
    let gateway = Gateway::new(&settings.routes, &store, &client, manner, options.body_timeout);
    let limits = Limits {
        header: options.header_timeout,
        idle: options.idle_timeout,
        connections: options.max_connections,
    };
    let server = Server::new(gateway.clone(), tls::for_clients(options)?, limits);
    let _ = banner::print(&settings, listener.local_addr()?, admin);
    let stop = async || {
        health.stop();
        gateway.drain().await;
    };
    server.run(listener, signals, options.shutdown_limit.0, stop).await;
    Ok(ExitCode::SUCCESS)
}
