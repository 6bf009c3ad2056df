//! `hapax dead`: dead letters, one or many.

use clap::Subcommand;
use hyper::Method;
use serde_json::json;

use super::note::{NoteArgs, parse_where};
use super::queue::QueueArgs;
use super::{
    Backend, CliError, PageArgs, columns, print_line, print_response, task, with_exit_codes,
};
use crate::api::{DeadLetters, DeadReasonBody, DeadReasons};

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax dead reasons outbox                                  why, and how many
  hapax dead list outbox --reason 'the broker said no'       which ones
  hapax dead requeue outbox 0198f2…                          one, in its old place
  hapax dead requeue outbox --where 'reason=the broker said no' --note 'broker is back'
  hapax dead discard outbox --where topic=test               delete them
  hapax dead reasons outbox --store postgres://app@db/app    without a server

Looking needs the scope `read` or `admin` where the server has tokens, the rest `admin`."))]
pub(crate) enum DeadAction {
    /// List dead letters
    #[command(after_help = with_exit_codes("\
Examples:
  hapax dead list outbox
  hapax dead list outbox --reason 'the broker said no' --all --json
  hapax dead list outbox --payload --json | jq -r '.items[].payload'"))]
    List {
        #[command(flatten)]
        queue: QueueArgs,
        #[command(flatten)]
        pages: PageArgs,
        /// Only those with this newest reason
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Show payload and headers, too; with --json
        #[arg(long)]
        payload: bool,
    },
    /// Count dead letters by their reason
    #[command(after_help = with_exit_codes("\
Examples:
  hapax dead reasons outbox
  hapax dead reasons outbox --json | jq -r '.reasons[0].reason'"))]
    Reasons(QueueArgs),
    /// Put dead letters back into their queue, in their old place
    #[command(after_help = with_exit_codes("\
Examples:
  hapax dead requeue outbox 0198f2c4-…
  hapax dead requeue outbox 0198f2c4-… 0198f2c5-… --note 'the address is fixed'
  hapax dead requeue outbox --where 'reason=the broker said no'
  hapax dead requeue outbox --where topic=orders
  hapax dead requeue outbox --all

Remove the cause first, or they die again. Several are a task of the server; this waits for it."))]
    Requeue(DeadSelection),
    /// Delete dead letters, so that later items of their keys go on
    #[command(after_help = with_exit_codes("\
Examples:
  hapax dead discard outbox 0198f2c4-…
  hapax dead discard outbox --where 'reason=no such customer,topic=orders' --note 'test data'
  hapax dead discard outbox --all

They cannot be brought back. Several are a task of the server; this waits for it."))]
    Discard(DeadSelection),
}

#[derive(clap::Args)]
pub(crate) struct DeadSelection {
    #[command(flatten)]
    queue: QueueArgs,
    /// The dead letters' ids, as `list` shows them
    #[arg(value_name = "ID", required_unless_present_any = ["filters", "all"])]
    ids: Vec<String>,
    /// All that match: reason=TEXT, topic=TEXT or both, separated by a comma
    #[arg(long = "where", id = "filters", value_name = "NAME=VALUE", conflicts_with = "ids")]
    filters: Vec<String>,
    /// All dead letters of the queue
    #[arg(long, conflicts_with_all = ["ids", "filters"])]
    all: bool,
    #[command(flatten)]
    note: NoteArgs,
}

impl DeadAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        match self {
            Self::List { queue, pages, reason, payload } => {
                let payload = payload.then_some("true");
                let list = || queue.request(Method::GET, &["dead"]).query("payload", payload);
                let request = || list().query("reason", reason.as_deref());
                pages.print::<DeadLetters>(backend, request, json).await
            }
            Self::Reasons(queue) => reasons(backend, &queue, json).await,
            Self::Requeue(selection) => selection.resolve(backend, "requeue", json).await,
            Self::Discard(selection) => selection.resolve(backend, "discard", json).await,
        }
    }
}

impl DeadSelection {
    async fn resolve(self, backend: &Backend, action: &str, json: bool) -> Result<(), CliError> {
        let Self { queue, ids, filters, note, .. } = self;
        // One is answered at once, and says whether it was there.
        if let [id] = &ids[..] {
            let request = match action {
                "requeue" => queue.request(Method::POST, &["dead", id, "requeue"]),
                _ => queue.request(Method::DELETE, &["dead", id]),
            };
            return backend.print(note.add_to(request), json).await;
        }
        let body = match ids.is_empty() {
            false => json!({"ids": ids}),
            true => json!({"where": parse_where(&filters, &["reason", "topic"])?}),
        };
        let request = queue.request(Method::POST, &["dead", action]).json(&body);
        let begun = backend.send(note.add_to(request)).await?;
        task::wait_for_end(backend, begun, json).await
    }
}

async fn reasons(backend: &Backend, queue: &QueueArgs, json: bool) -> Result<(), CliError> {
    let response = backend.send(queue.request(Method::GET, &["dead", "reasons"])).await?;
    if json {
        return print_response(&response, true);
    }
    let titles = ["COUNT", "FIRST", "LAST", "REASON"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    let row =
        |one: DeadReasonBody| vec![one.count.to_string(), one.first_at, one.last_at, one.reason];
    rows.extend(response.read::<DeadReasons>()?.reasons.into_iter().map(row));
    if rows.len() > 1 {
        print_line(columns(&rows));
    }
    Ok(())
}
