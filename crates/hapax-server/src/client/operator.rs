//! The operator's part of `hapax command`: list, settle, release, sweep.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Subcommand, ValueEnum};
use hyper::Method;
use serde::Deserialize;
use serde_json::json;

use super::command::{AnswerArgs, CommandName};
use super::{
    Backend, CliError, ClientRequest, EXIT_CODES, ListPage, PageArgs, print_line, print_response,
};

/// The operator's subcommands. They need the scope `admin` where the server has tokens.
#[derive(Subcommand)]
pub(super) enum OperatorAction {
    /// List commands, including those that came through the proxy
    #[command(after_help = format!("{LIST}\n\n{EXIT_CODES}"))]
    List(ListArgs),
    /// Settle a command that is unknown or failed: it ran, and this is its response
    #[command(after_help = format!("{SETTLE}\n\n{EXIT_CODES}"))]
    Settle(SettleArgs),
    /// Release a command that is unknown or failed: it did not run, and may run now
    #[command(after_help = format!("{RELEASE}\n\n{EXIT_CODES}"))]
    Release(ReleaseArgs),
    /// Delete expired claims and records, and print their number
    #[command(after_help = format!("{SWEEP}\n\n{EXIT_CODES}"))]
    Sweep(SweepArgs),
}

const LIST: &str = "\
Examples:
  hapax command list --state unknown
  hapax command list --all --json | jq -c '.commands[]'
  hapax command list --store sqlite:hapax.db       without a server";

#[derive(clap::Args)]
pub(super) struct ListArgs {
    /// Only commands in this state
    #[arg(long, value_enum)]
    state: Option<CommandState>,
    #[command(flatten)]
    pages: PageArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum CommandState {
    /// The owner's lease has not expired
    Pending,
    /// The owner disappeared, and may have acted
    Unknown,
    /// The response is stored
    Completed,
    /// The command may be tried again
    Failed,
}

const SETTLE: &str = "\
Examples:
  hapax command settle pay order-1 --status 201 --body '{\"id\":17}'
  hapax command settle 'POST /orders' key-1 --scope 7f3a… --status 201 --body @answer.json
  hapax command settle pay order-1 --store postgres://app@db/app --status 204

Find out first whether it ran. A command with a living owner (75) or with a stored response (4)
is not changed.";

#[derive(clap::Args)]
pub(super) struct SettleArgs {
    #[command(flatten)]
    target: OperatorTarget,
    #[command(flatten)]
    answer: AnswerArgs,
}

const RELEASE: &str = "\
Examples:
  hapax command release pay order-1
  hapax command release 'POST /orders' key-1 --scope 7f3a…

Find out first that it did not run: the next caller runs it. A command with a living owner (75) or
with a stored response (4) is not changed.";

#[derive(clap::Args)]
pub(super) struct ReleaseArgs {
    #[command(flatten)]
    target: OperatorTarget,
}

/// The command, and the caller's scope.
#[derive(clap::Args)]
pub(super) struct OperatorTarget {
    #[command(flatten)]
    name: CommandName,
    /// The caller's scope, as `list` shows it, for a key that came through the proxy
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
}

const SWEEP: &str = "\
Examples:
  hapax command sweep
  hapax command sweep --at-most 100000 --store sqlite:hapax.db

Readers do not see expired entries; this frees their space, as servers and proxies do from time to
time. Redis deletes expired entries itself: the number is always 0 there.";

#[derive(clap::Args)]
pub(super) struct SweepArgs {
    /// The most that are deleted [default: all]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    at_most: Option<u64>,
}

pub(super) async fn act(
    backend: &Backend,
    action: OperatorAction,
    json: bool,
) -> Result<ExitCode, CliError> {
    match action {
        OperatorAction::List(ListArgs { state, pages }) => {
            let state = state.and_then(|state| state.to_possible_value());
            let state = state.as_ref().map(|state| state.get_name());
            let request =
                || ClientRequest::new(Method::GET, &["operator", "commands"]).query("state", state);
            pages.print::<CommandPage>(backend, request, json).await?;
        }
        OperatorAction::Settle(SettleArgs { target, answer }) => {
            let response = backend.send(target.request(Method::PUT).json(&answer.json()?)).await?;
            print_response(&response, json)?;
        }
        OperatorAction::Release(ReleaseArgs { target }) => {
            backend.send(target.request(Method::DELETE)).await?;
        }
        OperatorAction::Sweep(sweep) => sweep.run(backend, json).await?,
    }
    Ok(ExitCode::SUCCESS)
}

impl OperatorTarget {
    fn request(&self, method: Method) -> ClientRequest {
        request(method, &self.name, self.scope.as_deref())
    }
}

/// An operator's request about one command.
pub(super) fn request(method: Method, name: &CommandName, scope: Option<&str>) -> ClientRequest {
    ClientRequest::new(method, &["operator", "commands", &name.operation, &name.key])
        .query("scope", scope)
}

#[derive(Deserialize)]
struct CommandPage {
    commands: Vec<ListedCommand>,
    next: Option<String>,
}

#[derive(Deserialize)]
struct ListedCommand {
    operation: String,
    key: String,
    scope: Option<String>,
    state: String,
    attempt: u32,
    begun_ms_ago: u64,
    expires_in_ms: u64,
}

impl ListPage for CommandPage {
    const HEAD: &'static [&'static str] =
        &["STATE", "ATTEMPT", "BEGUN", "KEPT FOR", "OPERATION", "KEY", "SCOPE"];

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |command: &ListedCommand| {
            vec![
                command.state.clone(),
                command.attempt.to_string(),
                format!("{} ago", time(command.begun_ms_ago)),
                time(command.expires_in_ms),
                command.operation.clone(),
                command.key.clone(),
                command.scope.clone().unwrap_or_else(|| "-".into()),
            ]
        };
        self.commands.iter().map(row).collect()
    }

    fn next(self) -> Option<String> {
        self.next
    }
}

/// The time in whole seconds, as people write it.
fn time(ms: u64) -> String {
    humantime::format_duration(Duration::from_secs(ms / 1000)).to_string()
}

#[derive(Deserialize)]
struct Swept {
    swept: u64,
}

impl SweepArgs {
    /// Sweeps in short requests until one finds nothing.
    async fn run(self, backend: &Backend, json: bool) -> Result<(), CliError> {
        let most = self.at_most.unwrap_or(u64::MAX);
        let mut total = 0;
        while total < most {
            let at_most = (most - total).min(10_000);
            let request = ClientRequest::new(Method::POST, &["operator", "sweep"]);
            let response = backend.send(request.json(&json!({"at_most": at_most}))).await?;
            let Swept { swept } = response.read()?;
            total += swept;
            if swept == 0 {
                break;
            }
        }
        print_line(if json {
            json!({"swept": total}).to_string()
        } else {
            format!("swept  {total}")
        });
        Ok(())
    }
}
