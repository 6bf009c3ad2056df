//! `hapax queue`: the depth of a queue, and its dead letters.

use clap::Subcommand;
use hyper::Method;

use super::{Backend, CliError, ClientRequest, ListPage, PageArgs, with_exit_codes};
use crate::api::{DeadLetterBody, DeadLetters};

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax queue show outbox                        how much waits, is in flight, is dead
  hapax queue dead outbox                        the dead letters and their reasons
  hapax queue requeue outbox 0198f2…             try it again; its key waits behind it
  hapax queue discard outbox 0198f2…             delete it, so that its key goes on
  hapax queue dead outbox --store postgres://app@db/app      without a server, for example a relay's

Needs the scope `admin` where the server has tokens."))]
pub(crate) enum QueueAction {
    /// Show the depth of a queue
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue show outbox
  hapax queue show outbox --json | jq .dead"))]
    Show(QueueArgs),
    /// List dead letters
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue dead outbox
  hapax queue dead ingest --all --json | jq -r '.items[].reason'"))]
    Dead {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Put a dead letter back into its queue
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue requeue outbox 0198f2c4-…
  hapax queue dead outbox --json | jq -r '.items[].id' | xargs -n1 hapax queue requeue outbox"))]
    Requeue(DeadLetterArgs),
    /// Delete a dead letter
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue discard outbox 0198f2c4-…"))]
    Discard(DeadLetterArgs),
}

#[derive(clap::Args)]
pub(crate) struct QueueArgs {
    /// The queue: `outbox`, `ingest`, or a LINE channel's (`line` on its own gateway)
    queue: String,
}

#[derive(clap::Args)]
pub(crate) struct DeadLetterArgs {
    #[command(flatten)]
    queue: QueueArgs,
    /// The dead letter's id, as `dead` shows it
    id: String,
}

impl QueueArgs {
    fn request(&self, method: Method, path: &[&str]) -> ClientRequest {
        ClientRequest::new(method, &[&["queues", &*self.queue][..], path].concat())
    }
}

impl QueueAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let request = match self {
            Self::Show(queue) => queue.request(Method::GET, &[]),
            Self::Dead { queue, pages } => {
                let request = || queue.request(Method::GET, &["dead"]);
                return pages.print::<DeadLetters>(backend, request, json).await;
            }
            Self::Requeue(DeadLetterArgs { queue, id }) => {
                queue.request(Method::POST, &["dead", &id, "requeue"])
            }
            Self::Discard(DeadLetterArgs { queue, id }) => {
                queue.request(Method::DELETE, &["dead", &id])
            }
        };
        backend.print(request, json).await
    }
}

impl ListPage for DeadLetters {
    const HEAD: &'static [&'static str] = &["ID", "ATTEMPTS", "SINCE", "KEY", "REASON"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        let row = |DeadLetterBody { id, key, attempts, reason, at }| {
            vec![id, attempts.to_string(), at, key.unwrap_or_else(|| "-".into()), reason]
        };
        (self.items.into_iter().map(row).collect(), self.next)
    }
}
