//! `hapax queue`: the depth of a queue, and its dead letters.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;

use super::error::exit_code_of;
use super::{
    Backend, CliError, ClientRequest, EXIT_CODES, ListPage, PageArgs, ServerArgs, StoreArgs,
    print_response,
};

const EXAMPLES: &str = "\
Examples:
  hapax queue show outbox                        how much waits, is in flight, is dead
  hapax queue dead outbox                        the dead letters and their reasons
  hapax queue requeue outbox 0198f2…             try it again; its key waits behind it
  hapax queue discard outbox 0198f2…             delete it, so that its key goes on
  hapax queue dead outbox --store postgres://app@db/app      without a server, for example a relay's

Needs the scope `admin` where the server has tokens.";

/// The arguments of `hapax queue`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct QueueArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show the depth of a queue
    #[command(after_help = format!("{SHOW}\n\n{EXIT_CODES}"))]
    Show(Name),
    /// List dead letters
    #[command(after_help = format!("{DEAD}\n\n{EXIT_CODES}"))]
    Dead(Dead),
    /// Put a dead letter back into its queue
    #[command(after_help = format!("{REQUEUE}\n\n{EXIT_CODES}"))]
    Requeue(Letter),
    /// Delete a dead letter
    #[command(after_help = format!("{DISCARD}\n\n{EXIT_CODES}"))]
    Discard(Letter),
}

/// The name of a queue.
#[derive(clap::Args)]
struct Name {
    /// The queue: `outbox`, `ingest`, `line`
    queue: String,
}

const SHOW: &str = "\
Examples:
  hapax queue show outbox
  hapax queue show outbox --json | jq .dead";

const DEAD: &str = "\
Examples:
  hapax queue dead outbox
  hapax queue dead ingest --all --json | jq -r '.items[].reason'";

#[derive(clap::Args)]
struct Dead {
    #[command(flatten)]
    name: Name,
    #[command(flatten)]
    pages: PageArgs,
}

const REQUEUE: &str = "\
Examples:
  hapax queue requeue outbox 0198f2c4-…
  hapax queue dead outbox --json | jq -r '.items[].id' | xargs -n1 hapax queue requeue outbox";

const DISCARD: &str = "\
Examples:
  hapax queue discard outbox 0198f2c4-…";

#[derive(clap::Args)]
struct Letter {
    #[command(flatten)]
    name: Name,
    /// The dead letter's id, as `dead` shows it
    id: String,
}

pub(crate) async fn run(args: QueueArgs) -> anyhow::Result<ExitCode> {
    let QueueArgs { server, store, action } = args;
    exit_code_of(server.json, act(&server, &store, action).await)
}

async fn act(server: &ServerArgs, store: &StoreArgs, action: Action) -> Result<ExitCode, CliError> {
    let backend = Backend::open(server, store).await?;
    match action {
        Action::Show(Name { queue }) => {
            let response =
                backend.send(ClientRequest::new(Method::GET, &["queues", &queue])).await?;
            print_response(&response, server.json)?;
        }
        Action::Dead(Dead { name, pages }) => {
            let request = || ClientRequest::new(Method::GET, &["queues", &name.queue, "dead"]);
            pages.print::<DeadPage>(&backend, request, server.json).await?;
        }
        Action::Requeue(Letter { name, id }) => {
            let path = ["queues", &name.queue, "dead", &id, "requeue"];
            backend.send(ClientRequest::new(Method::POST, &path)).await?;
        }
        Action::Discard(Letter { name, id }) => {
            let path = ["queues", &name.queue, "dead", &id];
            backend.send(ClientRequest::new(Method::DELETE, &path)).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Deserialize)]
struct DeadPage {
    items: Vec<DeadLetter>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct DeadLetter {
    id: String,
    key: Option<String>,
    attempts: u32,
    reason: String,
    at: String,
}

impl ListPage for DeadPage {
    const HEAD: &'static [&'static str] = &["ID", "ATTEMPTS", "SINCE", "KEY", "REASON"];

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |item: &DeadLetter| {
            vec![
                item.id.clone(),
                item.attempts.to_string(),
                item.at.clone(),
                item.key.clone().unwrap_or_else(|| "-".into()),
                item.reason.clone(),
            ]
        };
        self.items.iter().map(row).collect()
    }

    fn next(self) -> Option<String> {
        self.next
    }
}
