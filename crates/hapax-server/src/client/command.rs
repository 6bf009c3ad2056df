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

use super::error::exit_code_of;
use super::operator::{self, OperatorAction};
use super::{
    Backend, CliError, ClientRequest, ClientResponse, EXIT_CODES, ServerArgs, StoreArgs, duration,
    print_response, read_value,
};

const EXAMPLES: &str = "\
Examples:
  hapax command begin pay order-1 --fingerprint \"$(sha256sum < order.json)\"
  hapax command complete pay order-1 --ticket 5f2c… --status 201 --body @answer.json
  hapax command fail pay order-1 --ticket 5f2c…      it may be tried again
  hapax command show pay order-1
  hapax command list --state unknown                 the owner disappeared
  hapax command settle pay order-1 --status 201      it ran, and this is its response
  hapax command release pay order-1                  it did not run
  hapax command list --store sqlite:hapax.db         without a server, for example a proxy's";

/// The arguments of `hapax command`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct CommandArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    store: StoreArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin a command: `pending` is yours to run, `completed` has the stored response
    #[command(after_help = format!("{BEGIN}\n\n{EXIT_CODES}"))]
    Begin(Begin),
    /// Complete a command with its response
    #[command(after_help = format!("{COMPLETE}\n\n{EXIT_CODES}"))]
    Complete(Complete),
    /// Give a command back as failed: it may be tried again
    #[command(after_help = format!("{FAIL}\n\n{EXIT_CODES}"))]
    Fail(Fail),
    /// Show the state of a command
    #[command(after_help = format!("{SHOW}\n\n{EXIT_CODES}"))]
    Show(Show),
    #[command(flatten)]
    Operator(OperatorAction),
}

/// The name of a command.
#[derive(clap::Args)]
pub(super) struct CommandName {
    /// The operation: `pay`, `POST /orders`
    pub(super) operation: String,
    /// The idempotency key
    pub(super) key: String,
}

const BEGIN: &str = "\
Examples:
  hapax command begin pay order-1
  hapax command begin pay order-1 --wait 10s          waits for another owner's response
  hapax command begin pay order-1 --on-unknown rerun  after an owner that disappeared";

#[derive(clap::Args)]
struct Begin {
    #[command(flatten)]
    name: CommandName,
    /// A hash of the request: another hash with the same key is refused
    #[arg(long)]
    fingerprint: Option<String>,
    /// How long the command is yours without renewal
    #[arg(long, value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How long the response is kept
    #[arg(long, value_parser = duration, default_value = "24h")]
    retention: Duration,
    /// How long to wait while another owner runs it, at most 60s
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
    /// What to do if an earlier owner disappeared and may have acted
    #[arg(long, value_enum, default_value = "refuse")]
    on_unknown: OnUnknown,
}

#[derive(Clone, Copy, ValueEnum)]
enum OnUnknown {
    Refuse,
    Rerun,
}

const COMPLETE: &str = "\
Examples:
  hapax command complete pay order-1 --ticket 5f2c… --status 201 --body '{\"id\":17}'
  hapax command complete pay order-1 --ticket 5f2c… --header 'Location: /orders/17' --body @a.json";

#[derive(clap::Args)]
struct Complete {
    #[command(flatten)]
    name: CommandName,
    /// The ticket that `begin` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// The response of a command.
#[derive(clap::Args)]
pub(super) struct AnswerArgs {
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

const FAIL: &str = "\
Examples:
  hapax command fail pay order-1 --ticket 5f2c…";

#[derive(clap::Args)]
struct Fail {
    #[command(flatten)]
    name: CommandName,
    /// The ticket that `begin` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
}

const SHOW: &str = "\
Examples:
  hapax command show pay order-1
  hapax command show pay order-1 --json | jq -r .state
  hapax command show 'POST /orders' key-1 --scope 7f3a…    one that came through the proxy";

#[derive(clap::Args)]
struct Show {
    #[command(flatten)]
    name: CommandName,
    /// The caller's scope, as `list` shows it, for a key that came through the proxy
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
}

pub(crate) async fn run(args: CommandArgs) -> anyhow::Result<ExitCode> {
    let CommandArgs { server, store, action } = args;
    exit_code_of(server.json, act(&server, &store, action).await)
}

async fn act(server: &ServerArgs, store: &StoreArgs, action: Action) -> Result<ExitCode, CliError> {
    let backend = Backend::open(server, store).await?;
    let response = match action {
        Action::Begin(begin) => backend.send(begin.request()).await?,
        Action::Complete(complete) => backend.send(complete.request()?).await?,
        Action::Fail(fail) => backend.send(fail.request()).await?,
        Action::Show(show) => show.send(&backend).await?,
        Action::Operator(action) => return operator::act(&backend, action, server.json).await,
    };
    if !response.body.is_empty() {
        print_response(&response, server.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl CommandName {
    fn request(&self, method: Method) -> ClientRequest {
        ClientRequest::new(method, &["commands", &self.operation, &self.key])
    }
}

impl Show {
    /// Asks as the owner, and then as an operator: only an operator may name a scope.
    async fn send(&self, backend: &Backend) -> Result<ClientResponse, CliError> {
        let operator = || operator::request(Method::GET, &self.name, self.scope.as_deref());
        if self.scope.is_some() {
            return backend.send(operator()).await;
        }
        match backend.send(self.name.request(Method::GET)).await {
            Err(error) if error.has_code("forbidden") => backend.send(operator()).await,
            response => response,
        }
    }
}

impl Begin {
    fn request(&self) -> ClientRequest {
        let policy = match self.on_unknown {
            OnUnknown::Refuse => "refuse",
            OnUnknown::Rerun => "rerun",
        };
        let mut body = json!({
            "lease_ms": millis(self.lease),
            "retention_ms": millis(self.retention),
            "wait_ms": millis(self.wait),
            "on_unknown": policy,
        });
        if let Some(fingerprint) = &self.fingerprint {
            body["fingerprint"] = fingerprint.as_str().into();
        }
        self.name.request(Method::POST).json(&body).waiting(self.wait)
    }
}

impl Complete {
    fn request(&self) -> Result<ClientRequest, CliError> {
        let mut body = self.answer.json()?;
        body["token"] = self.ticket.as_str().into();
        Ok(self.name.request(Method::PUT).json(&body))
    }
}

impl AnswerArgs {
    pub(super) fn json(&self) -> Result<Value, CliError> {
        let bytes = read_value(Some(&self.body))?;
        let mut response = json!({"status": self.status, "headers": headers(&self.headers)?});
        match String::from_utf8(bytes) {
            Ok(text) => response["body"] = text.into(),
            Err(other) => response["body_base64"] = STANDARD.encode(other.as_bytes()).into(),
        }
        Ok(response)
    }
}

impl Fail {
    fn request(&self) -> ClientRequest {
        self.name.request(Method::DELETE).header("hapax-token", Some(self.ticket.clone()))
    }
}

/// The headers as the API takes them: a repeated name has an array of values.
fn headers(lines: &[String]) -> Result<Map<String, Value>, CliError> {
    let mut headers = Map::new();
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| CliError::Usage("--header takes 'NAME: VALUE'".into()))?;
        let value = Value::from(value.trim());
        match headers.get_mut(name.trim()) {
            None => {
                headers.insert(name.trim().to_owned(), value);
            }
            Some(Value::Array(values)) => values.push(value),
            Some(first) => *first = json!([first.take(), value]),
        }
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_keep_all_values_of_a_repeated_name() {
        let lines = ["link: a", "x: http://h:1", "link: b", "link:c"].map(str::to_owned);
        let map = Value::Object(headers(&lines).unwrap());
        assert_eq!(map, json!({"link": ["a", "b", "c"], "x": "http://h:1"}));
        assert!(headers(&["nothing".to_owned()]).is_err());
    }
}
