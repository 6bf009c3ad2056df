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

mod config;
mod simulate;
mod webhook;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Subcommand;
use hapax::queue::QueueName;
use hapax::worker::TargetHealth;
use hapax_http::MemoryBudget;
use hapax_line::Gateway;

use crate::api::LocalApi;
use crate::daemon::{
    Daemon, admin_line, daemon_settings, health_routes, print_banner, with_common_layers,
};
use crate::settings::{CommandSettings, LineSettings, ListenAddress, SettingFlags, SettingSources};
use config::LineChannel;

/// The gateway's own queue in the paths of its listeners: `/v1/queues/line`.
const QUEUE_ALIAS: &str = "line";

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
    let daemon = Daemon::boot(&sources, daemon_settings!(settings, "line")).await?;
    let config = config.label(Some(daemon.node.clone()));
    let gateway = Gateway::new(daemon.store.clone(), secrets, line, Arc::new(bot), config);

    let bot = gateway.health();
    if let Some(reporter) = &daemon.reporter {
        let (status, queue) = (reporter.status(), gateway.queue().as_str());
        status.follow_target("bot", Some(queue), bot.clone());
        status.follow_quota(gateway.quota());
    }
    daemon.readiness.require("bot", move || match &*bot.borrow() {
        TargetHealth::Up => None,
        TargetHealth::Down(reason) => Some(reason.clone().into_owned()),
    });
    let api = LocalApi::new(&daemon)?;
    let queues = api.queues_with_alias(QUEUE_ALIAS, gateway.queue());
    let admin = daemon.serve_admin(settings.admin.as_ref(), queues.clone()).await?;
    let memory = MemoryBudget::new(settings.buffer_memory.0);
    let webhooks = webhook::routes(gateway.clone(), settings.body_timeout, memory);
    let mut router = with_common_layers(webhooks.merge(health_routes(daemon.readiness.clone())));
    if settings.listen.is_loopback() {
        router = router.merge(queues).route("/metrics", api.route());
    }
    print(&settings, &sources, daemon.address()?, admin, gateway.queue());

    let readiness = daemon.readiness.clone();
    let worker = tokio::spawn(async move { gateway.run(readiness.stopping()).await });
    let stop = async || {
        let _ = worker.await;
    };
    // Two store calls more than the gateway's own timeout, to hand unfinished events back.
    let shutdown_timeout = settings.shutdown_timeout + settings.store_timeout * 2;
    daemon.serve(router, None, shutdown_timeout, stop).await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the addresses, the store, the rules, and one line to try.
fn print(
    settings: &LineSettings,
    sources: &SettingSources<LineSettings>,
    listen: SocketAddr,
    admin: Option<SocketAddr>,
    queue: &QueueName,
) {
    let from = |flag: &str| sources.origin(flag).unwrap_or_default();
    let upstream = settings.upstream.as_ref().map(|url| url.shown()).unwrap_or_default();
    let lines = [
        ("webhook", format!("POST http://{listen}/line/webhook")),
        ("upstream", upstream),
        ("LINE", settings.api_base.shown()),
        ("store", format!("{} (from {})", settings.store.shown(), from("store"))),
        ("queue", queue.as_str().to_owned()),
        ("rules", rules(settings, &from)),
        ("serves", served(settings).to_owned()),
        admin_line(admin, served_on_admin(settings)),
        ("try", format!("hapax line simulate --to http://{listen}/line/webhook")),
    ];
    print_banner(std::io::stdout(), &format!("line listens on http://{listen}"), &lines);
}

fn rules(settings: &LineSettings, from: &impl Fn(&str) -> String) -> String {
    if !settings.lock.0 {
        return format!("none: no user is locked (from {})", from("lock"));
    }
    let ttl = humantime::format_duration(settings.lock_ttl);
    let ttl = format!("{ttl} (from {})", from("lock-ttl"));
    match &settings.rules {
        Some(file) => format!("{}; a mutex without a time lasts {ttl}", file.display()),
        None => format!("text, location and postback, one at a time of each user, for {ttl}"),
    }
}

fn served_on_admin(settings: &LineSettings) -> &'static str {
    match settings.admin.as_ref().is_some_and(ListenAddress::is_loopback) {
        true => "/healthz, /readyz, /metrics, /v1/queues/line",
        false => "/healthz, /readyz, /metrics",
    }
}

/// The routes of the listener besides webhooks.
fn served(settings: &LineSettings) -> &'static str {
    match settings.listen.is_loopback() {
        true => "/healthz, /readyz; to this machine /metrics, /v1/queues/line",
        false => "/healthz, /readyz",
    }
}
