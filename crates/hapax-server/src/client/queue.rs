//! `hapax queue`: the depth of a queue, and its dead letters.

use std::time::Duration;

use clap::Subcommand;
use hyper::Method;

use super::note::NoteArgs;
use super::{
    Backend, CliError, ClientRequest, ClientResponse, ListPage, PageArgs, columns, print_line,
    print_response, with_exit_codes,
};
use crate::api::{DeadLetterBody, DeadLetters, ListedQueue, QueueDepthBody, QueueList};

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax queue list                               every queue and its depth
  hapax queue show outbox                        how much waits, is in flight, is dead
  hapax queue dead outbox                        the dead letters and their reasons
  hapax queue requeue outbox 0198f2…             try it again; its key waits behind it
  hapax queue discard outbox 0198f2…             delete it, so that its key goes on
  hapax queue pause outbox --note 'broker update'   its workers finish, and take nothing more
  hapax queue resume outbox
  hapax queue dead outbox --store postgres://app@db/app      without a server, for example a relay's

`hapax dead` requeues and discards many. Looking needs the scope `read` or `admin` where the server
has tokens, the rest `admin`."))]
pub(crate) enum QueueAction {
    /// List the queues and their depths
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue list
  hapax queue list --json | jq -r '.queues[] | select(.dead > 0).queue'"))]
    List,
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
  hapax queue dead ingest --all --json | jq -r '.items[].reason'
  hapax queue dead outbox --payload --json | jq -r '.items[].payload'"))]
    Dead {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        pages: PageArgs,
        /// Show payload and headers, too; with --json
        #[arg(long)]
        payload: bool,
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
    /// Pause a queue: its workers finish what they have, and take nothing more
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue pause outbox --note 'the broker is being updated'
  hapax queue pause outbox --store postgres://app@db/app

The pause is in the store, and holds for all workers and tenants within about a second, until it is
resumed. Items are still accepted, and wait."))]
    Pause {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Resume a queue that is paused
    #[command(after_help = with_exit_codes("\
Examples:
  hapax queue resume outbox"))]
    Resume {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        note: NoteArgs,
    },
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
    #[command(flatten)]
    note: NoteArgs,
}

impl QueueArgs {
    pub(super) fn request(&self, method: Method, path: &[&str]) -> ClientRequest {
        ClientRequest::new(method, &[&["queues", &*self.queue][..], path].concat())
    }
}

impl QueueAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let request = match self {
            Self::List => return list(backend, json).await,
            Self::Show(queue) => return show(backend, &queue, json).await,
            Self::Dead { queue, pages, payload } => {
                let payload = payload.then_some("true");
                let request = || queue.request(Method::GET, &["dead"]).query("payload", payload);
                return pages.print::<DeadLetters>(backend, request, json).await;
            }
            Self::Requeue(DeadLetterArgs { queue, id, note }) => {
                note.add_to(queue.request(Method::POST, &["dead", &id, "requeue"]))
            }
            Self::Discard(DeadLetterArgs { queue, id, note }) => {
                note.add_to(queue.request(Method::DELETE, &["dead", &id]))
            }
            Self::Pause { queue, note } => note.add_to(queue.request(Method::POST, &["pause"])),
            Self::Resume { queue, note } => note.add_to(queue.request(Method::POST, &["resume"])),
        };
        backend.print(request, json).await
    }
}

async fn queues(backend: &Backend) -> Result<ClientResponse, CliError> {
    backend.send(ClientRequest::new(Method::GET, &["queues"])).await
}

async fn list(backend: &Backend, json: bool) -> Result<(), CliError> {
    let response = queues(backend).await?;
    if json {
        return print_response(&response, true);
    }
    let titles = ["QUEUE", "WAITING", "IN FLIGHT", "DEAD", "OLDEST"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for ListedQueue { queue, depth } in response.read::<QueueList>()?.queues {
        let oldest = depth.oldest_age_ms.map(Duration::from_millis);
        let oldest = oldest.map(|age| humantime::format_duration(age).to_string());
        let counts = [depth.depth, depth.in_flight, depth.dead].map(|count| count.to_string());
        let ends = [queue].into_iter().chain(counts).chain([oldest.unwrap_or_else(|| "-".into())]);
        rows.push(ends.collect());
    }
    if rows.len() > 1 {
        print_line(columns(&rows));
    }
    Ok(())
}

/// The queues that programs of hapax use: they exist although nothing is in them.
const KNOWN: [&str; 3] = ["outbox", "ingest", "line"];

/// Shows the depth of a queue. A name that no queue has is an error, because it may be misspelt.
async fn show(backend: &Backend, queue: &QueueArgs, json: bool) -> Result<(), CliError> {
    let response = backend.send(queue.request(Method::GET, &[])).await?;
    let depth: QueueDepthBody = response.read()?;
    let is_empty = depth.depth + depth.in_flight + depth.dead == 0;
    if is_empty && !KNOWN.contains(&&*queue.queue) {
        let names = queues(backend).await?.read::<QueueList>()?.queues.into_iter();
        let names: Vec<_> = names.map(|listed| listed.queue).collect();
        if !names.contains(&queue.queue) {
            let names = if names.is_empty() { "none".into() } else { names.join(", ") };
            return Err(CliError::Missing(format!("there is no such queue; queues here: {names}")));
        }
    }
    print_response(&response, json)
}

impl ListPage for DeadLetters {
    const HEAD: &'static [&'static str] = &["ID", "ATTEMPTS", "SINCE", "TOPIC", "KEY", "REASON"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        let row = |letter: DeadLetterBody| {
            let absent = if letter.masked { "(masked)" } else { "-" };
            let key = letter.key.unwrap_or_else(|| absent.into());
            let attempts = letter.attempts.to_string();
            vec![letter.id, attempts, letter.at, letter.topic, key, letter.reason]
        };
        (self.items.into_iter().map(row).collect(), self.next)
    }
}
