//! `hapax demo`: an installation with traffic, on a temporary file, to look at in the console.
//!
//! ```text
//!   customers ─► hapax proxy ─► shop ─► outbox ─► hapax relay ─► warehouse, which fails sometimes
//!   users of LINE (simulated) ─► hapax line ─► bot
//!   workers ─► hapax serve: commands, locks, jobs          every part shares demo.db
//! ```

mod customers;
mod dice;
mod services;
mod started_process;

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hapax::{Store, StoreConfig};
use hapax_line::simulator::SimulatedApi;
use tokio::signal::unix::{SignalKind, signal};

use crate::client::{duration, print_line};
use customers::DemoTraffic;
use services::DemoServices;
use started_process::StartedProcess;

/// The secret and the token that the simulated LINE shares with the gateway.
const LINE_SECRET: &str = "simulated-secret";
const LINE_TOKEN: &str = "simulated-token";

#[derive(clap::Args)]
#[command(after_help = "\
It starts `hapax serve`, `hapax proxy`, `hapax relay` and `hapax line` on a temporary file, with a shop, a
warehouse that fails sometimes, a bot, and clients that retry, tap twice and disappear. Everything stays
on this machine, and is deleted at the end (Ctrl-C).

Examples:
  hapax demo                                   then open http://127.0.0.1:8787
  hapax demo --listen 127.0.0.1:9000 --for 5m  on another port, for five minutes")]
pub(crate) struct DemoArgs {
    /// Where the console listens; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8787")]
    listen: String,
    /// How long it runs; until Ctrl-C by default
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    runs_for: Option<Duration>,
}

/// Runs the installation until a signal or the end of `--for`.
pub(crate) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let folder = tempfile::tempdir().context("there is no place for temporary files")?;
    let url = format!("sqlite:{}", folder.path().join("demo.db").display());
    let mut ended = signal(SignalKind::terminate())?;

    let serve = ["serve", "--listen", &args.listen, "--store", &url];
    let mut serve = StartedProcess::start(&serve, &[], folder.path()).await?;
    let store: Arc<dyn Store> = hapax::open(&url, &StoreConfig::default())?;
    let services = DemoServices::start(store.clone()).await?;
    let line_api = SimulatedApi::start("127.0.0.1:0", LINE_TOKEN).await?;
    let mut parts = start_parts(&url, &services, &line_api, folder.path()).await?;
    let [proxy, line, _relay] = &parts;

    print_line(format_args!(
        "hapax demo\n  \
         console   {}\n  \
         store     {url} (deleted at the end)\n  \
         running   serve, proxy, relay, line; a shop, a warehouse, a bot, and their impatient customers\n  \
         end       Ctrl-C",
        serve.address,
    ));
    let traffic = DemoTraffic::new(&serve.address, &proxy.address, &line.address)?;
    let [part_one, part_two, part_three] = &mut parts;
    let why = tokio::select! {
        () = traffic.run() => None,
        _ = tokio::signal::ctrl_c() => None,
        _ = ended.recv() => None,
        () = tokio::time::sleep(args.runs_for.unwrap_or(Duration::MAX)) => None,
        name = serve.ended() => Some(name),
        name = part_one.ended() => Some(name),
        name = part_two.ended() => Some(name),
        name = part_three.ended() => Some(name),
    };
    match why {
        None => Ok(ExitCode::SUCCESS),
        Some(name) => anyhow::bail!("`hapax {name}` ended; what it printed is above"),
    }
}

/// Starts the proxy, the LINE gateway and the relay, in this order.
async fn start_parts(
    store: &str,
    services: &DemoServices,
    line_api: &SimulatedApi,
    folder: &Path,
) -> anyhow::Result<[StartedProcess; 3]> {
    let (shop, warehouse) = (&services.shop, &services.warehouse);
    let loopback = "127.0.0.1:0";
    let proxy = ["proxy", "--upstream", shop, "--listen", loopback, "--store", store];
    let line = ["line", "--upstream", &services.bot, "--listen", loopback, "--store", store];
    let environment = [
        ("LINE_CHANNEL_SECRET", LINE_SECRET.to_owned()),
        ("LINE_CHANNEL_ACCESS_TOKEN", LINE_TOKEN.to_owned()),
        ("LINE_API_BASE", line_api.base()),
    ];
    let relay = ["relay", "--from", store, "--to", warehouse, "--allow-private"];
    let patience = ["--max-attempts", "3", "--backoff", "300ms", "--after-dead", "continue"];
    Ok([
        StartedProcess::start(&proxy, &[], folder).await?,
        StartedProcess::start(&line, &environment, folder).await?,
        StartedProcess::start(&[&relay[..], &patience].concat(), &[], folder).await?,
    ])
}
