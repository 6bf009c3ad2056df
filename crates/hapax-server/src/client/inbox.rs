//! `hapax inbox`: receive messages once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::Method;
use serde_json::json;

use super::error::exit_code_of;
use super::{
    Backend, CliError, ClientRequest, EXIT_CODES, ServerArgs, StoreArgs, duration, print_response,
};

const EXAMPLES: &str = "\
Examples:
  hapax inbox begin billing 0198f2…              a `duplicate` had its effect before
  hapax inbox settle billing 0198f2… --ticket 5f2c…
  hapax inbox give-back billing 0198f2… --ticket 5f2c…   it had no effect

A message's identity is (tenant, consumer, message id). Do not acknowledge a message to
the broker that another consumer has (75); acknowledge a duplicate.";

/// The arguments of `hapax inbox`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct InboxArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Ask whether a message is new, and take it if so
    #[command(after_help = format!("{BEGIN}\n\n{EXIT_CODES}"))]
    Begin(Begin),
    /// Settle a message that had its effect: from now on it is a duplicate
    #[command(after_help = format!("{SETTLE}\n\n{EXIT_CODES}"))]
    Settle(Ended),
    /// Give back a message that had no effect: the next delivery is the next attempt
    #[command(after_help = format!("{GIVE_BACK}\n\n{EXIT_CODES}"))]
    GiveBack(Ended),
}

/// The name of a message.
#[derive(clap::Args)]
struct Name {
    /// The consumer: `billing`
    consumer: String,
    /// The message's id, as its sender assigned it
    message_id: String,
}

const BEGIN: &str = "\
Examples:
  hapax inbox begin billing 0198f2…
  hapax inbox begin billing 0198f2… --lease 5m --retention 60d --json";

#[derive(clap::Args)]
struct Begin {
    #[command(flatten)]
    name: Name,
    /// How long the message is yours; then another consumer may take it over
    #[arg(long, value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How long the message is recognised; choose it longer than any redelivery
    #[arg(long, value_parser = duration, default_value = "30d")]
    retention: Duration,
}

const SETTLE: &str = "\
Examples:
  hapax inbox settle billing 0198f2… --ticket 5f2c…";

const GIVE_BACK: &str = "\
Examples:
  hapax inbox give-back billing 0198f2… --ticket 5f2c…";

#[derive(clap::Args)]
struct Ended {
    #[command(flatten)]
    name: Name,
    /// The ticket that `begin` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
}

pub(crate) async fn run(args: InboxArgs) -> anyhow::Result<ExitCode> {
    let InboxArgs { server, store, action } = args;
    exit_code_of(server.json, act(&server, &store, action).await)
}

async fn act(server: &ServerArgs, store: &StoreArgs, action: Action) -> Result<ExitCode, CliError> {
    let backend = Backend::open(server, store).await?;
    let response = backend.send(action.request()).await?;
    if !response.body.is_empty() {
        print_response(&response, server.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Action {
    fn request(self) -> ClientRequest {
        match self {
            Self::Begin(Begin { name, lease, retention }) => {
                let body = json!({"lease_ms": millis(lease), "retention_ms": millis(retention)});
                name.request(Method::POST).json(&body)
            }
            Self::Settle(Ended { name, ticket }) => {
                name.request(Method::PUT).json(&json!({"token": ticket}))
            }
            Self::GiveBack(Ended { name, ticket }) => {
                name.request(Method::DELETE).header("hapax-token", Some(ticket))
            }
        }
    }
}

impl Name {
    fn request(&self, method: Method) -> ClientRequest {
        ClientRequest::new(method, &["inbox", &self.consumer, &self.message_id])
    }
}
