//! `hapax line`: a gateway that makes any LINE bot safe against double taps and redelivery.
//!
//! ```text
//!   LINE ─► listener ─► webhook (body, problem documents) ─► Gateway (hapax-line) ─► upstream
//!             timeouts                                         queue, locks, retries    your bot
//! ```
//!
//! | | `/healthz`, `/readyz` | `/metrics` | `/v1/queues` |
//! |---|---|---|---|
//! | the listener, on loopback | yes | to this machine | to this machine |
//! | the listener, elsewhere | yes | no | no |
//! | `--admin`, on loopback | yes | yes | to this machine |
//! | `--admin`, elsewhere | yes | yes | no |

mod banner;
mod config;
mod simulate;
mod webhook;

use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use clap::Subcommand;
use hapax_line::Gateway;

use crate::daemon::{Daemon, LocalApi, daemon_settings, health_routes};
use crate::serve::router::with_common_layers;
use crate::settings::{CommandSettings, LineSettings, SettingFlags, SettingSources};
use config::LineChannel;

/// The arguments of `hapax line`.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct LineArgs {
    #[command(flatten)]
    flags: SettingFlags<LineSettings>,
    #[command(subcommand)]
    command: Option<LineCommand>,
}

#[derive(Subcommand)]
enum LineCommand {
    /// Simulate LINE: send signed events to a bot, and show its replies.
    Simulate(simulate::SimulateArgs),
}

/// Takes webhooks until a signal says to stop, or simulates LINE.
pub(crate) async fn run(args: LineArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(LineCommand::Simulate(args)) => simulate::run(args).await,
        None => serve(args.flags).await,
    }
}

async fn serve(flags: SettingFlags<LineSettings>) -> anyhow::Result<ExitCode> {
    let sources = SettingSources::gather(flags)?;
    let settings = LineSettings::read(&sources)?;
    let LineChannel { secrets, line, bot } = LineChannel::new(&settings)?;
    let config = config::gateway_config(&settings)?;
    let daemon = Daemon::boot(&sources, daemon_settings!(settings)).await?;
    let gateway = Gateway::new(daemon.store.clone(), secrets, line, Arc::new(bot), config);

    let api = LocalApi::new(&daemon)?;
    let admin = daemon.serve_admin(settings.admin.as_ref(), Some(api.clone())).await?;
    let webhooks = webhook::routes(gateway.clone(), settings.body_timeout);
    let router = listener_routes(webhooks, &daemon, api, settings.listen.is_loopback());
    banner::print(&settings, &sources, daemon.address()?, admin);

    let readiness = daemon.readiness.clone();
    let worker = tokio::spawn(async move { gateway.run(readiness.stopping()).await });
    let stop = async || {
        let _ = worker.await;
    };
    // Two store calls more than the gateway's own timeout: events that did not finish are handed
    // back after it.
    let shutdown_timeout = settings.shutdown_timeout + settings.store_timeout * 2;
    daemon.serve(router, None, shutdown_timeout, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// The webhooks, the health and, on loopback, parts of the API.
fn listener_routes(webhooks: Router, daemon: &Daemon, api: LocalApi, is_loopback: bool) -> Router {
    let router = with_common_layers(webhooks.merge(health_routes(daemon.readiness.clone())));
    if !is_loopback {
        return router;
    }
    api.clone().add_queues(router).route("/metrics", api.route())
}
