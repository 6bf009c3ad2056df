//! `hapax queue`: how much waits, and what an operator does about dead letters.

use std::process::ExitCode;

use clap::Subcommand;
use hyper::Method;
use serde::Deserialize;

use super::failure::finish;
use super::{Call, Connect, Desk, Direct, EXIT_CODES, Failure, columns, line, note, print, show};

const EXAMPLES: &str = "\
Examples:
  hapax queue show outbox                        how much waits, is in flight, is dead
  hapax queue dead outbox                        what was given up, and why
  hapax queue requeue outbox 0198f2…             try it again; its key waits behind it
  hapax queue discard outbox 0198f2…             forget it, so that its key goes on
  hapax queue dead outbox --store postgres://app@db/app      without a server: a relay's, say

Needs the scope `admin` where the server has tokens.";

/// The arguments of `hapax queue`.
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
    /// Say how much is in a queue
    #[command(after_help = format!("{SHOW}\n\n{EXIT_CODES}"))]
    Show(Name),
    /// List dead letters
    #[command(after_help = format!("{DEAD}\n\n{EXIT_CODES}"))]
    Dead(Dead),
    /// Put a dead letter back: it is tried again
    #[command(after_help = format!("{REQUEUE}\n\n{EXIT_CODES}"))]
    Requeue(Letter),
    /// Forget a dead letter for good
    #[command(after_help = format!("{DISCARD}\n\n{EXIT_CODES}"))]
    Discard(Letter),
}

/// Which queue.
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
    /// How many at once, 1 to 1000 [default: 100; with --all 1000]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// Go on where an earlier page ended: its `next`
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// Every page; with --json a line for each
    #[arg(long)]
    all: bool,
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

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { connect, direct, action } = args;
    finish(connect.json, act(&connect, &direct, action).await)
}

async fn act(connect: &Connect, direct: &Direct, action: Action) -> Result<ExitCode, Failure> {
    let desk = Desk::open(connect, direct).await?;
    match action {
        Action::Show(Name { queue }) => {
            let answer = desk.send(Call::new(Method::GET, &["queues", &queue])).await?;
            show(&answer, connect.json)?;
        }
        Action::Dead(dead) => dead.run(&desk, connect.json).await?,
        Action::Requeue(Letter { name, id }) => {
            let path = ["queues", &name.queue, "dead", &id, "requeue"];
            desk.send(Call::new(Method::POST, &path)).await?;
        }
        Action::Discard(Letter { name, id }) => {
            let path = ["queues", &name.queue, "dead", &id];
            desk.send(Call::new(Method::DELETE, &path)).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Deserialize)]
struct Page {
    items: Vec<Listed>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    id: String,
    key: Option<String>,
    attempts: u32,
    reason: String,
    at: String,
}

impl Dead {
    async fn run(self, desk: &Desk, json: bool) -> Result<(), Failure> {
        let limit = self.limit.or(self.all.then_some(1000));
        let mut after = self.after;
        let mut headed = false;
        loop {
            let call = Call::new(Method::GET, &["queues", &self.name.queue, "dead"])
                .query("limit", limit)
                .query("after", after);
            let answer = desk.send(call).await?;
            let page: Page = answer.read()?;
            if json {
                print(&answer.body);
            } else if !page.items.is_empty() {
                line(table(&page.items, !headed));
                headed = true;
            }
            match page.next {
                Some(next) if self.all => after = Some(next),
                Some(_) if !json => {
                    note("there are more: --all shows them, --limit more at once");
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

fn table(items: &[Listed], with_head: bool) -> String {
    let head = ["ID", "ATTEMPTS", "SINCE", "KEY", "REASON"];
    let head = with_head.then(|| head.map(str::to_owned).to_vec());
    let rows = items.iter().map(|item| {
        vec![
            item.id.clone(),
            item.attempts.to_string(),
            item.at.clone(),
            item.key.clone().unwrap_or_else(|| "-".into()),
            item.reason.clone(),
        ]
    });
    columns(&head.into_iter().chain(rows).collect::<Vec<_>>())
}
