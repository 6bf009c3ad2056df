//! What an operator does about commands: list, settle, release, sweep.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::command::{Given, Name};
use super::{Call, Desk, EXIT_CODES, Failure, columns, line, note, print, show};

/// Needs the scope `admin` where the server has tokens.
#[derive(Subcommand)]
pub(super) enum Operator {
    /// List commands, those that came through the proxy included
    #[command(after_help = format!("{LIST}\n\n{EXIT_CODES}"))]
    List(List),
    /// Settle a command whose owner went away, or that failed: it ran, and this is its answer
    #[command(after_help = format!("{SETTLE}\n\n{EXIT_CODES}"))]
    Settle(Settle),
    /// Release a command whose owner went away, or that failed: it did not run, and may now
    #[command(after_help = format!("{RELEASE}\n\n{EXIT_CODES}"))]
    Release(Release),
    /// Delete expired claims and records, and say how many
    #[command(after_help = format!("{SWEEP}\n\n{EXIT_CODES}"))]
    Sweep(Sweep),
}

const LIST: &str = "\
Examples:
  hapax command list --state unknown
  hapax command list --all --json | jq -c '.commands[]'
  hapax command list --store sqlite:hapax.db       without a server";

#[derive(clap::Args)]
pub(super) struct List {
    /// Only those that stand like this
    #[arg(long, value_enum)]
    state: Option<State>,
    /// About how many at once, 1 to 1000 [default: 100; with --all 1000]
    #[arg(long, value_name = "NUMBER")]
    limit: Option<u64>,
    /// Go on where an earlier page ended: its `next`
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// Every page; with --json a line for each
    #[arg(long)]
    all: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum State {
    /// Its owner is believed alive
    Pending,
    /// Its owner went away, and may or may not have acted
    Unknown,
    /// It has its answer
    Completed,
    /// It may be tried again
    Failed,
}

const SETTLE: &str = "\
Examples:
  hapax command settle pay order-1 --status 201 --body '{\"id\":17}'
  hapax command settle 'POST /orders' key-1 --scope 7f3a… --status 201 --body @answer.json
  hapax command settle pay order-1 --store postgres://app@db/app --status 204

Find out first whether it ran. A command whose owner is believed alive (75), or that has its
answer (4), is left alone.";

#[derive(clap::Args)]
pub(super) struct Settle {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    answer: Given,
}

const RELEASE: &str = "\
Examples:
  hapax command release pay order-1
  hapax command release 'POST /orders' key-1 --scope 7f3a…

Find out first that it did not run: whoever asks next runs it. A command whose owner is believed
alive (75), or that has its answer (4), is left alone.";

#[derive(clap::Args)]
pub(super) struct Release {
    #[command(flatten)]
    whose: Whose,
}

/// Which command, and of whom.
#[derive(clap::Args)]
pub(super) struct Whose {
    #[command(flatten)]
    name: Name,
    /// Who asked, as `list` shows it: the scope of a key that came through the proxy
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
}

const SWEEP: &str = "\
Examples:
  hapax command sweep
  hapax command sweep --at-most 100000 --store sqlite:hapax.db

Expired means gone to every reader already; this gives the room back, as servers and proxies do by
themselves now and then. Redis forgets by itself: it is always 0 there.";

#[derive(clap::Args)]
pub(super) struct Sweep {
    /// How many at most [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    at_most: Option<u64>,
}

pub(super) async fn act(desk: &Desk, action: Operator, json: bool) -> Result<ExitCode, Failure> {
    match action {
        Operator::List(list) => list.run(desk, json).await?,
        Operator::Settle(Settle { whose, answer }) => {
            let answer = desk.send(whose.call(Method::PUT).json(&answer.json()?)).await?;
            show(&answer, json)?;
        }
        Operator::Release(Release { whose }) => {
            desk.send(whose.call(Method::DELETE)).await?;
        }
        Operator::Sweep(sweep) => sweep.run(desk, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Whose {
    fn call(&self, method: Method) -> Call {
        call(method, &self.name, self.scope.as_deref())
    }
}

/// A call about one command as an operator.
pub(super) fn call(method: Method, name: &Name, scope: Option<&str>) -> Call {
    Call::new(method, &["operator", "commands", &name.operation, &name.key]).query("scope", scope)
}

#[derive(Deserialize)]
struct Page {
    commands: Vec<Listed>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct Listed {
    operation: String,
    key: String,
    scope: Option<String>,
    state: String,
    attempt: u32,
    begun_ms_ago: u64,
    expires_in_ms: u64,
}

impl List {
    async fn run(self, desk: &Desk, json: bool) -> Result<(), Failure> {
        let state = self.state.and_then(|state| state.to_possible_value());
        let state = state.as_ref().map(|state| state.get_name());
        let limit = self.limit.or(self.all.then_some(1000));
        let mut after = self.after;
        let mut headed = false;
        loop {
            let call = Call::new(Method::GET, &["operator", "commands"])
                .query("state", state)
                .query("limit", limit)
                .query("after", after);
            let answer = desk.send(call).await?;
            let page: Page = answer.read()?;
            if json {
                print(&answer.body);
            } else if !page.commands.is_empty() {
                line(table(&page.commands, !headed));
                headed = true;
            }
            match page.next {
                Some(next) if self.all => after = Some(next),
                Some(_) if !json => {
                    note("there may be more: --all shows them, --limit more at once");
                    return Ok(());
                }
                _ => return Ok(()),
            }
        }
    }
}

fn table(commands: &[Listed], with_head: bool) -> String {
    let head = ["STATE", "ATTEMPT", "BEGUN", "KEPT FOR", "OPERATION", "KEY", "SCOPE"];
    let head = with_head.then(|| head.map(str::to_owned).to_vec());
    let rows = commands.iter().map(|command| {
        vec![
            command.state.clone(),
            command.attempt.to_string(),
            format!("{} ago", time(command.begun_ms_ago)),
            time(command.expires_in_ms),
            command.operation.clone(),
            command.key.clone(),
            command.scope.clone().unwrap_or_else(|| "-".into()),
        ]
    });
    columns(&head.into_iter().chain(rows).collect::<Vec<_>>())
}

/// In whole seconds, as a person reads it.
fn time(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms / 1000)).to_string()
}

#[derive(Deserialize)]
struct Swept {
    swept: u64,
}

impl Sweep {
    /// One call ends before it takes long; the last one finds nothing.
    async fn run(self, desk: &Desk, json: bool) -> Result<(), Failure> {
        let most = self.at_most.unwrap_or(u64::MAX);
        let mut total = 0;
        while total < most {
            let at_most = (most - total).min(10_000);
            let call = Call::new(Method::POST, &["operator", "sweep"]);
            let answer = desk.send(call.json(&json!({"at_most": at_most}))).await?;
            let Swept { swept } = answer.read()?;
            total += swept;
            if swept == 0 {
                break;
            }
        }
        line(if json { json!({"swept": total}).to_string() } else { format!("swept  {total}") });
        Ok(())
    }
}
