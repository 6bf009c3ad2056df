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
mod health;
mod listener;
mod pace;
mod quiet;
mod settings;
mod target;
mod tls;
mod tunnel;
mod upstream;

use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::logging;
use gateway::Gateway;
use health::{Health, Standing};
use listener::Server;
pub(crate) use settings::Args;
use settings::{Options, Settings, Sources};
use upstream::Manner;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Passes requests on until a signal says to stop.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let sources = Sources::gather(args)?;
    let settings = Settings::read(&sources)?;
    let options = &settings.options;
    logging::start(options.log, options.log_level);
    for name in sources.unknown_variables() {
        tracing::warn!("the environment variable {name} is no setting of hapax");
    }
    let mut signals = Signals::new()?;
    let listener = listener::bind("listen", &options.listen).await?;
    let meters = admin::meters()?;
    let limits = hapax::Options { call_limit: options.store_timeout, ..hapax::Options::default() };
    let store = hapax::open(options.store.secret(), &limits).await;
    let store = store.with_context(|| format!("the store {}", options.store.shown()))?;
    let health = Health::first_look(store.as_ref(), options.store_timeout).await?;

    let admin = match &options.admin {
        Some(address) => {
            let listener = listener::bind("admin", address).await?;
            let address = listener.local_addr()?;
            let router = admin::router(health.clone(), meters);
            tokio::spawn(async move { axum::serve(listener, router).await });
            Some(address)
        }
        None => None,
    };
    tokio::spawn(health.clone().keep(store.clone(), options.store_timeout));
    hapax::sweep_forever(store.clone(), options.sweep_interval);

    let tls_upstream = settings.routes.iter().any(|route| route.target.is_tls());
    let client = client::new(options, tls_upstream)?;
    let manner = Manner {
        http2: options.upstream_http2,
        host: options.host,
        trust_forwarded: options.trust_forwarded,
    };
    let gateway = Gateway::new(&settings.routes, &store, &client, manner, options.body_timeout);
    let server = Server::new(gateway.clone(), tls::for_clients(options)?, options);
    let _ = banner::print(&settings, listener.local_addr()?, admin);
    tokio::select! {
        () = server.accept(&listener) => {}
        () = signals.next() => {}
    }
    // The kernel turns new clients away from here on.
    drop(listener);
    stop(&health, gateway, server, options, signals).await;
    Ok(ExitCode::SUCCESS)
}

/// Ends in order: nothing new is accepted, what runs is finished and stored, up to a limit or a
/// second signal.
async fn stop(
    health: &Health,
    gateway: Gateway,
    server: Server,
    options: &Options,
    mut signals: Signals,
) {
    health.set(Standing::Stopping);
    let limit = options.shutdown_limit;
    tracing::info!(
        "shutting down: requests in flight have {limit:?}; a second signal ends at once"
    );
    let drained = async { tokio::join!(server.drain(), gateway.drain()) };
    tokio::select! {
        _ = drained => tracing::info!("every request was answered, and every answer stored"),
        () = tokio::time::sleep(limit) => tracing::warn!("some requests were not answered in time"),
        () = signals.next() => tracing::warn!("a second signal: ending now"),
    }
}

/// `SIGTERM` and `SIGINT`.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let (terminate, interrupt) = (SignalKind::terminate(), SignalKind::interrupt());
        Ok(Self { terminate: signal(terminate)?, interrupt: signal(interrupt)? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
