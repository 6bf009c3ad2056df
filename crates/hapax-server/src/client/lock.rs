//! `hapax lock`: take, renew, release and look at locks; run a command under one.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::Method;
use serde_json::json;

use super::error::exit_code_of;
use super::{CliError, ClientRequest, EXIT_CODES, ServerArgs, duration, print_response};
use crate::lock_run;

const EXAMPLES: &str = "\
Examples:
  hapax lock run nightly-report -- ./report.sh    never two at a time
  hapax lock take deploy --ttl 10m                prints the ticket
  hapax lock renew deploy --ttl 10m --ticket 5f2c…
  hapax lock release deploy --ticket 5f2c…
  hapax lock show deploy";

/// The arguments of `hapax lock`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct LockArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Take a lock and print its ticket and fence
    #[command(after_help = format!("{TAKE}\n\n{EXIT_CODES}"))]
    Take(Take),
    /// Make a lock last longer
    #[command(after_help = format!("{RENEW}\n\n{EXIT_CODES}"))]
    Renew(Renew),
    /// Release a lock, if it is still this ticket's
    #[command(after_help = format!("{RELEASE}\n\n{EXIT_CODES}"))]
    Release(Release),
    /// Show whether a lock is held, and for how long
    #[command(after_help = format!("{SHOW}\n\n{EXIT_CODES}"))]
    Show(Show),
    /// Run a command while holding a lock
    Run(lock_run::LockRunArgs),
    /// The process between `run` and its command, which ends with its parent
    #[command(hide = true)]
    Tied(lock_run::child::BoundCommandArgs),
}

const TAKE: &str = "\
Examples:
  hapax lock take deploy --ttl 10m
  hapax lock take deploy --ttl 10m --wait 30s     waits for its turn
  ticket=$(hapax lock take deploy --json | jq -r .token)";

#[derive(clap::Args)]
struct Take {
    /// The lock's name, 1 to 255 bytes of printable ASCII
    key: String,
    /// How long it lasts without renewal, at most 1h
    #[arg(long, value_parser = duration, default_value = "5s")]
    ttl: Duration,
    /// How long to wait while another owner has it, at most 60s
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
}

const RENEW: &str = "\
Examples:
  hapax lock renew deploy --ttl 10m --ticket 5f2c…";

#[derive(clap::Args)]
struct Renew {
    /// The lock's name
    key: String,
    /// The ticket that `take` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
    /// How long it lasts from now on, at most 1h
    #[arg(long, value_parser = duration, default_value = "5s")]
    ttl: Duration,
}

const RELEASE: &str = "\
Examples:
  hapax lock release deploy --ticket 5f2c…";

#[derive(clap::Args)]
struct Release {
    /// The lock's name
    key: String,
    /// The ticket that `take` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
}

const SHOW: &str = "\
Examples:
  hapax lock show deploy
  hapax lock show deploy --json | jq .held";

#[derive(clap::Args)]
struct Show {
    /// The lock's name
    key: String,
}

pub(crate) async fn run(args: LockArgs) -> anyhow::Result<ExitCode> {
    let LockArgs { server, action } = args;
    let outcome = match action {
        Action::Run(args) => lock_run::run(args, &server).await,
        Action::Tied(args) => Ok(lock_run::child::become_command(args)),
        Action::Take(take) => take.run(&server).await,
        Action::Renew(renew) => renew.run(&server).await,
        Action::Release(release) => release.run(&server).await,
        Action::Show(show) => show.run(&server).await,
    };
    exit_code_of(server.json, outcome)
}

impl Take {
    async fn run(self, server: &ServerArgs) -> Result<ExitCode, CliError> {
        let response = server.client()?.send(take_request(&self.key, self.ttl, self.wait)).await?;
        print_response(&response, server.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Renew {
    async fn run(self, server: &ServerArgs) -> Result<ExitCode, CliError> {
        let response =
            server.client()?.send(renew_request(&self.key, &self.ticket, self.ttl)).await?;
        print_response(&response, server.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Release {
    async fn run(self, server: &ServerArgs) -> Result<ExitCode, CliError> {
        server.client()?.send(release_request(&self.key, &self.ticket)).await?;
        Ok(ExitCode::SUCCESS)
    }
}

impl Show {
    async fn run(self, server: &ServerArgs) -> Result<ExitCode, CliError> {
        let response =
            server.client()?.send(ClientRequest::new(Method::GET, &["locks", &self.key])).await?;
        print_response(&response, server.json)?;
        Ok(ExitCode::SUCCESS)
    }
}

pub(crate) fn take_request(key: &str, ttl: Duration, wait: Duration) -> ClientRequest {
    ClientRequest::new(Method::POST, &["locks", key])
        .json(&json!({"ttl_ms": millis(ttl), "wait_ms": millis(wait)}))
        .waiting(wait)
}

pub(crate) fn renew_request(key: &str, ticket: &str, ttl: Duration) -> ClientRequest {
    ClientRequest::new(Method::PUT, &["locks", key])
        .json(&json!({"token": ticket, "ttl_ms": millis(ttl)}))
}

pub(crate) fn release_request(key: &str, ticket: &str) -> ClientRequest {
    ClientRequest::new(Method::DELETE, &["locks", key]).header("hapax-token", Some(ticket.into()))
}
