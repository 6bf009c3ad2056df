//! `hapax command`: begin, complete, fail and look at idempotent commands, and what an operator
//! decides about those of others.

use std::process::ExitCode;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Subcommand, ValueEnum};
use hapax::millis;
use hyper::Method;
use serde_json::{Map, Value, json};

use super::failure::finish;
use super::operator::{self, Operator};
use super::{Answer, Call, Connect, Desk, Direct, EXIT_CODES, Failure, duration, input, show};

const EXAMPLES: &str = "\
Examples:
  hapax command begin pay order-1 --fingerprint \"$(sha256sum < order.json)\"
  hapax command complete pay order-1 --ticket 5f2c… --status 201 --body @answer.json
  hapax command fail pay order-1 --ticket 5f2c…      it may be tried again
  hapax command show pay order-1
  hapax command list --state unknown                 whose owner went away
  hapax command settle pay order-1 --status 201      it ran, and this is its answer
  hapax command release pay order-1                  it did not run
  hapax command list --store sqlite:hapax.db         without a server: a proxy's, say";

/// The arguments of `hapax command`.
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
    /// Ask to run a command: `pending` is yours to run, `completed` has the answer
    #[command(after_help = format!("{BEGIN}\n\n{EXIT_CODES}"))]
    Begin(Begin),
    /// Complete a command with its answer
    #[command(after_help = format!("{COMPLETE}\n\n{EXIT_CODES}"))]
    Complete(Complete),
    /// Give a command back as failed: it may be tried again
    #[command(after_help = format!("{FAIL}\n\n{EXIT_CODES}"))]
    Fail(Fail),
    /// Say where a command stands
    #[command(after_help = format!("{SHOW}\n\n{EXIT_CODES}"))]
    Show(Show),
    #[command(flatten)]
    Operator(Operator),
}

/// Which command.
#[derive(clap::Args)]
pub(super) struct Name {
    /// What is done: `pay`, `POST /orders`
    pub(super) operation: String,
    /// Which one of them: the idempotency key
    pub(super) key: String,
}

const BEGIN: &str = "\
Examples:
  hapax command begin pay order-1
  hapax command begin pay order-1 --wait 10s          waits for somebody else's answer
  hapax command begin pay order-1 --on-unknown rerun  after an owner that went away";

#[derive(clap::Args)]
struct Begin {
    #[command(flatten)]
    name: Name,
    /// A hash of what is asked for: another one with the same key is refused
    #[arg(long)]
    fingerprint: Option<String>,
    /// How long you are believed to be at work
    #[arg(long, value_parser = duration, default_value = "30s")]
    lease: Duration,
    /// How long the answer is kept
    #[arg(long, value_parser = duration, default_value = "24h")]
    retention: Duration,
    /// How long to wait where somebody else is at it, at most 60s
    #[arg(long, value_parser = duration, default_value = "0s")]
    wait: Duration,
    /// What to do where an earlier owner went away and may or may not have acted
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
    name: Name,
    /// The ticket that `begin` printed
    #[arg(long, env = "HAPAX_TICKET", hide_env_values = true)]
    ticket: String,
    #[command(flatten)]
    answer: Given,
}

/// An answer.
#[derive(clap::Args)]
pub(super) struct Given {
    /// The answer's status
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// A header of the answer; may be repeated
    #[arg(long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// The answer's body; `@FILE` reads a file, `-` standard input
    #[arg(long, default_value = "")]
    body: String,
}

const FAIL: &str = "\
Examples:
  hapax command fail pay order-1 --ticket 5f2c…";

#[derive(clap::Args)]
struct Fail {
    #[command(flatten)]
    name: Name,
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
    name: Name,
    /// Who asked, as `list` shows it: the scope of a key that came through the proxy
    #[arg(long, value_name = "HASH")]
    scope: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { connect, direct, action } = args;
    finish(connect.json, act(&connect, &direct, action).await)
}

async fn act(connect: &Connect, direct: &Direct, action: Action) -> Result<ExitCode, Failure> {
    let desk = Desk::open(connect, direct).await?;
    let answer = match action {
        Action::Begin(begin) => desk.send(begin.call()).await?,
        Action::Complete(complete) => desk.send(complete.call()?).await?,
        Action::Fail(fail) => desk.send(fail.call()).await?,
        Action::Show(show) => show.send(&desk).await?,
        Action::Operator(action) => return operator::act(&desk, action, connect.json).await,
    };
    if !answer.body.is_empty() {
        show(&answer, connect.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Name {
    fn call(&self, method: Method) -> Call {
        Call::new(method, &["commands", &self.operation, &self.key])
    }
}

impl Show {
    /// As the owner, or else as an operator: a scope is not for everybody to name.
    async fn send(&self, desk: &Desk) -> Result<Answer, Failure> {
        let operator = || operator::call(Method::GET, &self.name, self.scope.as_deref());
        if self.scope.is_some() {
            return desk.send(operator()).await;
        }
        match desk.send(self.name.call(Method::GET)).await {
            Err(failure) if failure.is("forbidden") => desk.send(operator()).await,
            answer => answer,
        }
    }
}

impl Begin {
    fn call(&self) -> Call {
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
        self.name.call(Method::POST).json(&body).waiting(self.wait)
    }
}

impl Complete {
    fn call(&self) -> Result<Call, Failure> {
        let mut body = self.answer.json()?;
        body["token"] = self.ticket.as_str().into();
        Ok(self.name.call(Method::PUT).json(&body))
    }
}

impl Given {
    pub(super) fn json(&self) -> Result<Value, Failure> {
        let bytes = input::value(Some(&self.body))?;
        let mut answer = json!({"status": self.status, "headers": headers(&self.headers)?});
        match String::from_utf8(bytes) {
            Ok(text) => answer["body"] = text.into(),
            Err(other) => answer["body_base64"] = STANDARD.encode(other.as_bytes()).into(),
        }
        Ok(answer)
    }
}

impl Fail {
    fn call(&self) -> Call {
        self.name.call(Method::DELETE).header("hapax-token", Some(self.ticket.clone()))
    }
}

/// `NAME: VALUE` lines as the API takes them: a repeated name has an array.
fn headers(lines: &[String]) -> Result<Map<String, Value>, Failure> {
    let mut headers = Map::new();
    for line in lines {
        let (name, value) = line
            .split_once(':')
            .ok_or_else(|| Failure::Usage("--header takes 'NAME: VALUE'".into()))?;
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
    fn a_repeated_header_keeps_all_its_values() {
        let lines = ["link: a", "x: http://h:1", "link: b", "link:c"].map(str::to_owned);
        let map = Value::Object(headers(&lines).unwrap());
        assert_eq!(map, json!({"link": ["a", "b", "c"], "x": "http://h:1"}));
        assert!(headers(&["nothing".to_owned()]).is_err());
    }
}
