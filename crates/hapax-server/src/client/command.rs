//! `hapax command`: begin, complete, fail and show idempotent commands, and the operator's decisions
//! about them.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Subcommand, ValueEnum};
use hapax::millis;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::note::{NoteArgs, parse_where};
use super::{
    Backend, CliError, ClientRequest, ListPage, PageArgs, TicketArgs, duration, print_line,
    read_value, shown_key, task, with_exit_codes,
};
use crate::api::{CommandList, SweepResult};
use crate::leased_run::CommandRunArgs;

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax command run pay order-1 -- ./pay.sh          runs it once, and renews its lease
  hapax command begin pay order-1 --fingerprint \"$(sha256sum < order.json)\"
  hapax command renew pay order-1 --ticket 5f2c…     it takes longer
  hapax command complete pay order-1 --ticket 5f2c… --status 201 --body @answer.json
  hapax command fail pay order-1 --ticket 5f2c…      it may be tried again
  hapax command show pay order-1
  hapax command list --state unknown                 the owner disappeared
  hapax command settle pay order-1 --status 201      it ran, and this is its response
  hapax command release pay order-1                  it did not run
  hapax command release --where state=unknown,operation=pay   all of them
  hapax command list --store sqlite:hapax.db         without a server, for example a proxy's"))]
pub(crate) enum CommandAction {
    /// Begin a command: `pending` is yours to run, `completed` has the stored response
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command begin pay order-1
  hapax command begin pay order-1 --wait 10s          waits for another owner's response
  hapax command begin pay order-1 --on-unknown rerun  after an owner that disappeared"))]
    Begin {
        #[command(flatten)]
        command: CommandName,
        /// How long the command is yours without renewal
        #[arg(long, value_parser = duration, default_value = "30s")]
        lease: Duration,
        /// How long to wait while another owner runs it, at most 60s
        #[arg(long, value_parser = duration, default_value = "0s")]
        wait: Duration,
        #[command(flatten)]
        begin: BeginFlags,
    },
    /// Make a begun command last longer
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command renew pay order-1 --ticket 5f2c… --lease 5m"))]
    Renew {
        #[command(flatten)]
        command: CommandName,
        #[command(flatten)]
        ticket: TicketArgs,
        /// How long it is yours from now on, at most 1h
        #[arg(long, value_parser = duration, default_value = "30s")]
        lease: Duration,
    },
    /// Complete a command with its response
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command complete pay order-1 --ticket 5f2c… --status 201 --body '{\"id\":17}'
  hapax command complete pay order-1 --ticket 5f2c… --header 'Location: /orders/17' --body @a.json"))]
    Complete {
        #[command(flatten)]
        command: CommandName,
        #[command(flatten)]
        ticket: TicketArgs,
        #[command(flatten)]
        answer: AnswerArgs,
    },
    /// Give a command back as failed: it may be tried again
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command fail pay order-1 --ticket 5f2c…"))]
    Fail {
        #[command(flatten)]
        command: CommandName,
        #[command(flatten)]
        ticket: TicketArgs,
    },
    /// Run a program once for a key, and print its output to every caller
    Run(CommandRunArgs),
    /// Show the state of a command
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command show pay order-1
  hapax command show pay order-1 --json | jq -r .state
  hapax command show 'POST /orders' key-1 --scope 7f3a…    one that came through the proxy"))]
    Show(ScopedCommand),
    /// List commands, including those that came through the proxy
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command list --state unknown
  hapax command list --all --json | jq -c '.commands[]'
  hapax command list --store sqlite:hapax.db       without a server"))]
    List {
        /// Only commands in this state
        #[arg(long, value_enum)]
        state: Option<StateFilter>,
        /// Only commands of this operation
        #[arg(long, value_name = "NAME")]
        operation: Option<String>,
        #[command(flatten)]
        pages: PageArgs,
    },
    /// Settle a command that is unknown or failed: it ran, and this is its response
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command settle pay order-1 --status 201 --body '{\"id\":17}'
  hapax command settle 'POST /orders' key-1 --scope 7f3a… --status 201 --body @answer.json
  hapax command settle pay order-1 --store postgres://app@db/app --status 204
  hapax command settle --where state=unknown,operation=notify --status 204 --note 'they were sent'

Find out first whether it ran. A command with a living owner (75) or with a stored response (4)
is not changed. Many are a task of the server; this waits for it."))]
    Settle {
        #[command(flatten)]
        command: DecidedCommands,
        #[command(flatten)]
        answer: AnswerArgs,
    },
    /// Release a command that is unknown or failed: it did not run, and may run now
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command release pay order-1
  hapax command release 'POST /orders' key-1 --scope 7f3a…
  hapax command release --where state=failed,older-than=1h --note 'the bank was down'

Find out first that it did not run: the next caller runs it. A command with a living owner (75) or
with a stored response (4) is not changed. Many are a task of the server; this waits for it."))]
    Release(DecidedCommands),
    /// Delete expired claims, records, jobs and done items, and print their number
    #[command(after_help = with_exit_codes("\
Examples:
  hapax command sweep
  hapax command sweep --at-most 100000 --store sqlite:hapax.db

Readers do not see expired entries; this frees their space, as servers and proxies do from time to
time. Redis deletes expired entries itself: the number is always 0 there."))]
    Sweep {
        /// The most that are deleted [default: all]
        #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
        at_most: Option<u64>,
    },
}

#[derive(clap::Args)]
pub(crate) struct CommandName {
    /// The operation: `pay`, `POST /orders`
    operation: String,
    /// The idempotency key
    key: String,
}

#[derive(clap::Args)]
pub(crate) struct BeginFlags {
    /// A hash of the request: another hash with the same key is refused
    #[arg(long)]
    fingerprint: Option<String>,
    /// How long the response is kept
    #[arg(long, value_parser = duration, default_value = "24h")]
    retention: Duration,
    /// The policy for a command whose earlier owner disappeared and may have acted
    #[arg(long, value_parser = ["refuse", "rerun"], default_value = "refuse")]
    on_unknown: String,
}

impl BeginFlags {
    pub(crate) fn request(
        &self,
        command: &CommandName,
        lease: Duration,
        wait: Duration,
    ) -> ClientRequest {
        let mut body = json!({
            "lease_ms": millis(lease), "retention_ms": millis(self.retention),
            "wait_ms": millis(wait), "on_unknown": self.on_unknown,
        });
        if let Some(fingerprint) = &self.fingerprint {
            body["fingerprint"] = fingerprint.as_str().into();
        }
        command.request(Method::POST).json(&body).waiting(wait)
    }
}

#[derive(clap::Args)]
pub(crate) struct ScopedCommand {
    #[command(flatten)]
    name: CommandName,
    /// The caller's scope, as `list` shows it, where several callers of the proxy have the same key
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
}

/// One command, or all that match.
#[derive(clap::Args)]
pub(crate) struct DecidedCommands {
    /// The operation: `pay`, `POST /orders`
    #[arg(required_unless_present = "filters", requires = "key")]
    operation: Option<String>,
    /// The idempotency key
    key: Option<String>,
    /// The caller's scope, as `list` shows it, where several callers of the proxy have the same key
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
    /// All that match: state=unknown or state=failed, operation=NAME, older-than=TIME
    #[arg(long = "where", id = "filters", value_name = "NAME=VALUE")]
    #[arg(conflicts_with_all = ["operation", "key", "scope"])]
    filters: Vec<String>,
    #[command(flatten)]
    note: NoteArgs,
}

impl DecidedCommands {
    async fn decide(
        self,
        backend: &Backend,
        action: &str,
        answer: Option<Value>,
        json: bool,
    ) -> Result<(), CliError> {
        if let (Some(operation), Some(key)) = (self.operation, self.key) {
            let name = CommandName { operation, key };
            let command = ScopedCommand { name, scope: self.scope };
            let request = match &answer {
                Some(answer) => command.request(Method::PUT).json(answer),
                None => command.request(Method::DELETE),
            };
            return backend.print(self.note.add_to(request), json).await;
        }
        let mut filter = parse_where(&self.filters, &["state", "operation", "older-than"])?;
        if let Some(Value::String(text)) = filter.remove("older-than") {
            let usage = |text| CliError::Usage(format!("--where older-than: {text}"));
            let time = duration(&text).map_err(usage)?;
            filter.insert("older_than_ms".into(), millis(time).into());
        }
        let mut body = answer.unwrap_or_else(|| json!({}));
        (body["where"], body["action"]) = (filter.into(), action.into());
        let request = ClientRequest::new(Method::POST, &["operator", "commands", "decide"]);
        let begun = backend.send(self.note.add_to(request.json(&body))).await?;
        task::wait_for_end(backend, begun, json).await
    }
}

#[derive(clap::Args)]
pub(crate) struct AnswerArgs {
    /// The status of the response
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// A header of the response; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The body of the response; `@FILE` reads a file, `-` standard input
    #[arg(long, default_value = "")]
    body: String,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum StateFilter {
    /// The owner's lease has not expired
    Pending,
    /// The owner disappeared, and may have acted
    Unknown,
    /// The response is stored
    Completed,
    /// The command may be tried again
    Failed,
}

impl CommandAction {
    pub(crate) async fn run(self, backend: &Backend, json: bool) -> Result<ExitCode, CliError> {
        let done = |()| ExitCode::SUCCESS;
        let request = match self {
            Self::Run(run) => return run.run(backend).await,
            Self::Begin { command, lease, wait, begin } => begin.request(&command, lease, wait),
            Self::Renew { command, ticket, lease } => command
                .request(Method::PATCH)
                .json(&json!({"token": ticket.ticket, "lease_ms": millis(lease)})),
            Self::Complete { command, ticket, answer } => {
                let mut body = answer.json()?;
                body["token"] = ticket.ticket.into();
                command.request(Method::PUT).json(&body)
            }
            Self::Fail { command, ticket } => {
                command.request(Method::DELETE).header("hapax-token", Some(ticket.ticket))
            }
            // Asks as the owner, and then as an operator: only an operator may name a scope.
            Self::Show(command) if command.scope.is_none() => {
                match backend.print(command.name.request(Method::GET), json).await {
                    Err(error)
                        if error.has_code("forbidden") || error.has_code("command-missing") =>
                    {
                        command.request(Method::GET)
                    }
                    shown => return shown.map(done),
                }
            }
            Self::Show(command) => command.request(Method::GET),
            Self::List { state, operation, pages } => {
                let state = state.and_then(|state| state.to_possible_value());
                let state = state.as_ref().map(|state| state.get_name());
                let path = ["operator", "commands"];
                let list = || ClientRequest::new(Method::GET, &path).query("state", state);
                let request = || list().query("operation", operation.as_deref());
                return pages.print::<CommandList>(backend, request, json).await.map(done);
            }
            Self::Settle { command, answer } => {
                let answer = answer.json()?;
                return command.decide(backend, "settle", Some(answer), json).await.map(done);
            }
            Self::Release(command) => {
                return command.decide(backend, "release", None, json).await.map(done);
            }
            Self::Sweep { at_most } => return sweep(backend, at_most, json).await.map(done),
        };
        backend.print(request, json).await.map(done)
    }
}

impl CommandName {
    pub(crate) fn request(&self, method: Method) -> ClientRequest {
        ClientRequest::new(method, &["commands", &self.operation, &self.key])
    }
}

impl ScopedCommand {
    /// An operator's request about the command.
    fn request(&self, method: Method) -> ClientRequest {
        let CommandName { operation, key } = &self.name;
        ClientRequest::new(method, &["operator", "commands", operation, key])
            .query("scope", self.scope.as_deref())
    }
}

impl AnswerArgs {
    fn json(&self) -> Result<Value, CliError> {
        let bytes = read_value(Some(&self.body))?;
        let mut response = json!({"status": self.status, "headers": headers(&self.headers)?});
        set_body(&mut response, bytes);
        Ok(response)
    }
}

/// Sets the body of a response as the API takes it: text, or anything else in base64.
pub(crate) fn set_body(response: &mut Value, body: Vec<u8>) {
    match String::from_utf8(body) {
        Ok(text) => response["body"] = text.into(),
        Err(other) => response["body_base64"] = STANDARD.encode(other.as_bytes()).into(),
    }
}

/// The headers as the API takes them: each name has an array of values.
fn headers(lines: &[String]) -> Result<Map<String, Value>, CliError> {
    let mut headers = Map::new();
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| CliError::Usage("--header takes 'NAME: VALUE'".into()))?;
        let values = headers.entry(name.trim()).or_insert_with(|| json!([]));
        values.as_array_mut().expect("an array of values").push(value.trim().into());
    }
    Ok(headers)
}

impl ListPage for CommandList {
    const HEAD: &'static [&'static str] =
        &["STATE", "ATTEMPT", "BEGUN", "KEPT FOR", "OPERATION", "KEY", "SCOPE"];

    fn into_rows(self) -> (Vec<Vec<String>>, Option<String>) {
        let seconds = |ms| humantime::format_duration(Duration::from_secs(ms / 1000)).to_string();
        let rows = self.commands.into_iter().map(|command| {
            vec![
                command.state,
                command.attempt.to_string(),
                format!("{} ago", seconds(command.begun_ms_ago)),
                seconds(command.expires_in_ms),
                command.operation,
                shown_key(command.key),
                command.scope.unwrap_or_else(|| "-".into()),
            ]
        });
        (rows.collect(), self.next)
    }
}

/// Sweeps in short requests until nothing is left.
async fn sweep(backend: &Backend, at_most: Option<u64>, json: bool) -> Result<(), CliError> {
    let most = at_most.unwrap_or(u64::MAX);
    let (mut total, mut left) = (0, true);
    while left && total < most {
        let at_most = (most - total).min(10_000);
        let request = ClientRequest::new(Method::POST, &["operator", "sweep"]);
        let response = backend.send(request.json(&json!({"at_most": at_most}))).await?;
        let SweepResult { swept, more } = response.read()?;
        total += swept;
        left = more;
    }
    let json = json.then(|| json!({"swept": total, "more": left}).to_string());
    print_line(json.unwrap_or_else(|| format!("swept  {total}")));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_all_values_of_a_repeated_name() {
        let lines = ["link: a", "x: http://h:1", "link: b", "link:c"].map(str::to_owned);
        let map = Value::Object(headers(&lines).unwrap());
        assert_eq!(map, json!({"link": ["a", "b", "c"], "x": ["http://h:1"]}));
        assert!(headers(&["nothing".to_owned()]).is_err());
    }
}
