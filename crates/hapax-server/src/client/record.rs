//! `hapax record`: read, write, patch and delete records.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::{Method, StatusCode};

use super::failure::finish;
use super::{Answer, Call, Connect, EXIT_CODES, Failure, duration, input, line, print};

const EXAMPLES: &str = "\
Examples:
  hapax record put user:U1:last_transaction '{\"amount\":120}' --ttl 1h
  hapax record get user:U1:last_transaction -i     with its version
  hapax record patch user:U1:last_transaction '{\"amount\":90}' --if-match 3f9a…
  hapax record delete user:U1:last_transaction

A version that is given with --if-match and is not the stored one any more changes nothing and
exits with 4: read it again, repeat the change.";

/// The arguments of `hapax record`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct Args {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print a record
    #[command(after_help = format!("{GET}\n\n{EXIT_CODES}"))]
    Get(Get),
    /// Store a record
    #[command(after_help = format!("{PUT}\n\n{EXIT_CODES}"))]
    Put(Put),
    /// Change some fields of a record (JSON merge patch) and print the result
    #[command(after_help = format!("{PATCH}\n\n{EXIT_CODES}"))]
    Patch(Patch),
    /// Delete a record
    #[command(after_help = format!("{DELETE}\n\n{EXIT_CODES}"))]
    Delete(Delete),
}

const GET: &str = "\
Examples:
  hapax record get cart:17
  hapax record get cart:17 -i      ETag and time left first, then an empty line";

#[derive(clap::Args)]
struct Get {
    /// The record's name, 1 to 255 bytes of printable ASCII
    key: String,
    /// Print its version (ETag) and how long it is kept, too
    #[arg(short = 'i', long)]
    show_version: bool,
}

const PUT: &str = "\
Examples:
  hapax record put cart:17 '{\"cups\":2}' --ttl 30m
  hapax record put cart:17 @cart.json --if-match 3f9a…
  jq .cart order.json | hapax record put cart:17 --if-none-match";

#[derive(clap::Args)]
struct Put {
    /// The record's name
    key: String,
    /// JSON; `@FILE` reads a file; `-` or nothing reads standard input
    value: Option<String>,
    #[command(flatten)]
    change: Change,
    /// Only where there is no such record yet
    #[arg(long, conflicts_with = "if_match")]
    if_none_match: bool,
}

const PATCH: &str = "\
Examples:
  hapax record patch cart:17 '{\"cups\":3}'           changes one field
  hapax record patch cart:17 '{\"note\":null}'        removes one
  hapax record patch cart:17 @change.json --if-match 3f9a…";

#[derive(clap::Args)]
struct Patch {
    /// The record's name
    key: String,
    /// A merge patch; `@FILE` reads a file; `-` or nothing reads standard input
    value: Option<String>,
    #[command(flatten)]
    change: Change,
}

/// What a change of a record may ask for.
#[derive(clap::Args)]
struct Change {
    /// How long it is kept; without, a new record is kept for ever and an old one as it was
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,
    /// Only where this is still the version
    #[arg(long, value_name = "VERSION")]
    if_match: Option<String>,
    /// Print the new version (ETag), too
    #[arg(short = 'i', long)]
    show_version: bool,
}

const DELETE: &str = "\
Examples:
  hapax record delete cart:17
  hapax record delete cart:17 --if-match 3f9a…";

#[derive(clap::Args)]
struct Delete {
    /// The record's name
    key: String,
    /// Only where this is still the version
    #[arg(long, value_name = "VERSION")]
    if_match: Option<String>,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { connect, action } = args;
    finish(connect.json, act(&connect, action).await)
}

async fn act(connect: &Connect, action: Action) -> Result<ExitCode, Failure> {
    let api = connect.api()?;
    match action {
        Action::Get(get) => {
            let answer = api.send(call(Method::GET, &get.key)).await?;
            if get.show_version {
                version(&answer);
                line("");
            }
            print(&answer.body);
        }
        Action::Put(put) => {
            let body = input::value(put.value.as_deref())?;
            let none_match = put.if_none_match.then(|| "*".to_owned());
            let call = put.change.of(Method::PUT, &put.key, body);
            let answer = api.send(call.header("if-none-match", none_match)).await?;
            stored(&answer, put.change.show_version, connect.json);
        }
        Action::Patch(patch) => {
            let body = input::value(patch.value.as_deref())?;
            let answer = api.send(patch.change.of(Method::PATCH, &patch.key, body)).await?;
            if patch.change.show_version {
                version(&answer);
                line("");
            }
            print(&answer.body);
        }
        Action::Delete(delete) => {
            let version = delete.if_match.as_deref().map(entity_tag);
            api.send(call(Method::DELETE, &delete.key).header("if-match", version)).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Change {
    fn of(&self, method: Method, key: &str, body: Vec<u8>) -> Call {
        call(method, key)
            .query("ttl_ms", self.ttl.map(millis))
            .header("if-match", self.if_match.as_deref().map(entity_tag))
            .body(body)
    }
}

fn call(method: Method, key: &str) -> Call {
    Call::new(method, &["records", key])
}

/// A version as people copy it, with or without its quotes, as an `If-Match` takes it.
fn entity_tag(version: &str) -> String {
    if version == "*" || version.contains('"') {
        version.to_owned()
    } else {
        format!("\"{version}\"")
    }
}

fn version(answer: &Answer) {
    if let Some(tag) = answer.header("etag") {
        line(format_args!("ETag: {tag}"));
    }
    if let Some(ms) = answer.header("hapax-expires-in-ms") {
        line(format_args!("Hapax-Expires-In-Ms: {ms}"));
    }
}

fn stored(answer: &Answer, show_version: bool, json: bool) {
    if show_version {
        version(answer);
    }
    if json {
        print(&answer.body);
    } else if !show_version {
        line(if answer.status == StatusCode::CREATED { "created" } else { "changed" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_may_be_given_without_their_quotes() {
        assert_eq!(entity_tag("3f"), "\"3f\"");
        assert_eq!(entity_tag("\"3f\""), "\"3f\"");
        assert_eq!(entity_tag("*"), "*");
    }
}
