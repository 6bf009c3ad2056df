//! `hapax inbox`: receive messages once.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::Method;
use serde_json::json;

use super::{Backend, CliError, ClientRequest, TicketArgs, duration, with_exit_codes};
use crate::leased_run::InboxRunArgs;

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax inbox run billing 0198f2… -- ./invoice.sh    runs it once, and renews its lease
  hapax inbox begin billing 0198f2…              a `duplicate` had its effect before
  hapax inbox settle billing 0198f2… --ticket 5f2c…
  hapax inbox give-back billing 0198f2… --ticket 5f2c…   it had no effect

A message's identity is (tenant, consumer, message id). Do not acknowledge a message to
the broker that another consumer has (75); acknowledge a duplicate."))]
pub(crate) enum InboxAction {
    /// Ask whether a message is new, and take it if so
    #[command(after_help = with_exit_codes("\
Examples:
  hapax inbox begin billing 0198f2…
  hapax inbox begin billing 0198f2… --lease 5m --retention 60d --json"))]
    Begin {
        #[command(flatten)]
        message: MessageArgs,
        /// How long the message is yours; then another consumer may take it over
        #[arg(long, value_parser = duration, default_value = "30s")]
        lease: Duration,
        /// How long the message is recognised; choose it longer than any redelivery
        #[arg(long, value_parser = duration, default_value = "30d")]
        retention: Duration,
    },
    /// Make a received message last longer
    #[command(after_help = with_exit_codes("\
Examples:
  hapax inbox renew billing 0198f2… --ticket 5f2c… --lease 5m"))]
    Renew {
        #[command(flatten)]
        message: MessageArgs,
        #[command(flatten)]
        ticket: TicketArgs,
        /// How long it is yours from now on, at most 1h
        #[arg(long, value_parser = duration, default_value = "30s")]
        lease: Duration,
    },
    /// Run a program once for a message
    Run(InboxRunArgs),
    /// Settle a message that had its effect: from now on it is a duplicate
    #[command(after_help = with_exit_codes("\
Examples:
  hapax inbox settle billing 0198f2… --ticket 5f2c…"))]
    Settle {
        #[command(flatten)]
        message: MessageArgs,
        #[command(flatten)]
        ticket: TicketArgs,
    },
    /// Give back a message that had no effect: the next delivery is the next attempt
    #[command(after_help = with_exit_codes("\
Examples:
  hapax inbox give-back billing 0198f2… --ticket 5f2c…"))]
    GiveBack {
        #[command(flatten)]
        message: MessageArgs,
        #[command(flatten)]
        ticket: TicketArgs,
    },
}

#[derive(clap::Args)]
pub(crate) struct MessageArgs {
    /// The consumer: `billing`
    consumer: String,
    /// The message's id, as its sender assigned it
    message_id: String,
}

impl MessageArgs {
    pub(crate) fn request(&self, method: Method) -> ClientRequest {
        ClientRequest::new(method, &["inbox", &self.consumer, &self.message_id])
    }

    pub(crate) fn begin(&self, lease: Duration, retention: Duration) -> ClientRequest {
        self.request(Method::POST)
            .json(&json!({"lease_ms": millis(lease), "retention_ms": millis(retention)}))
    }
}

impl InboxAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<ExitCode, CliError> {
        let request = match self {
            Self::Run(run) => return run.run(backend).await,
            Self::Begin { message, lease, retention } => message.begin(lease, retention),
            Self::Renew { message, ticket, lease } => message
                .request(Method::PATCH)
                .json(&json!({"token": ticket.ticket, "lease_ms": millis(lease)})),
            Self::Settle { message, ticket } => {
                message.request(Method::PUT).json(&json!({"token": ticket.ticket}))
            }
            Self::GiveBack { message, ticket } => {
                message.request(Method::DELETE).header("hapax-token", Some(ticket.ticket))
            }
        };
        backend.print(request, json).await.map(|()| ExitCode::SUCCESS)
    }
}
