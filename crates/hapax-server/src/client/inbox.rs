//! `hapax inbox`: receive messages once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::Method;
use serde_json::json;

use super::failure::finish;
use super::{Call, Connect, Desk, Direct, EXIT_CODES, Failure, duration, show};

const EXAMPLES: &str = "\
Examples:
  hapax inbox begin billing 0198f2…              `duplicate` had its effect before
  hapax inbox settle billing 0198f2… --ticket 5f2c…
  hapax inbox give-back billing 0198f2… --ticket 5f2c…   it had none

A message's identity is (tenant, consumer, message id). One that somebody is at (75) should not be
acknowledged to the broker; a duplicate should.";

/// The arguments of `hapax inbox`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    connect: Connect,
    #[command(flatten)]
    direct: Direct,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Ask whether a message is new, and take it if so
    #[command(after_help = format!("{BEGIN}\n\n{EXIT_CODES}"))]
    Begin(Begin),
    /// Say that a message had its effect: from now on it is a duplicate
    #[command(after_help = format!("{SETTLE}\n\n{EXIT_CODES}"))]
    Settle(Ended),
    /// Give a message back: it had no effect, the next delivery is the next attempt
    #[command(after_help = format!("{GIVE_BACK}\n\n{EXIT_CODES}"))]
    GiveBack(Ended),
}

/// Which message, and whose.
#[derive(clap::Args)]
struct Name {
    /// Who consumes it: `billing`
    consumer: String,
    /// The message's id, as the sender made it
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
    /// How long you are believed to be at work; then somebody else may take it over
    #[arg(long, value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How long it is recognised; longer than anybody delivers it again
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

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { connect, direct, action } = args;
    finish(connect.json, act(&connect, &direct, action).await)
}

async fn act(connect: &Connect, direct: &Direct, action: Action) -> Result<ExitCode, Failure> {
    let desk = Desk::open(connect, direct).await?;
    let answer = desk.send(action.call()).await?;
    if !answer.body.is_empty() {
        show(&answer, connect.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Action {
    fn call(self) -> Call {
        match self {
            Self::Begin(Begin { name, lease, retention }) => {
                let body = json!({"lease_ms": millis(lease), "retention_ms": millis(retention)});
                name.call(Method::POST).json(&body)
            }
            Self::Settle(Ended { name, ticket }) => {
                name.call(Method::PUT).json(&json!({"token": ticket}))
            }
            Self::GiveBack(Ended { name, ticket }) => {
                name.call(Method::DELETE).header("hapax-token", Some(ticket))
            }
        }
    }
}

impl Name {
    fn call(&self, method: Method) -> Call {
        Call::new(method, &["inbox", &self.consumer, &self.message_id])
    }
}
