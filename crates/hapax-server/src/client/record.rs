//! `hapax record`: read, write, patch and delete records.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::{Method, StatusCode};

use super::error::exit_code_of;
use super::{
    CliError, ClientRequest, ClientResponse, EXIT_CODES, ServerArgs, duration, print_bytes,
    print_line, read_value,
};

const EXAMPLES: &str = "\
Examples:
  hapax record put user:U1:last_transaction '{\"amount\":120}' --ttl 1h
  hapax record get user:U1:last_transaction -i     with its version
  hapax record patch user:U1:last_transaction '{\"amount\":90}' --if-match 3f9a…
  hapax record delete user:U1:last_transaction

If the version of --if-match is not the stored one any more, nothing is changed and the exit code
is 4: read the record again and repeat the change.";

/// The arguments of `hapax record`.
#[derive(clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    server: ServerArgs,
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
    /// Also print the version (ETag) and the remaining time
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
    /// Only if there is no such record yet
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

/// The options of a change.
#[derive(clap::Args)]
struct Change {
    /// How long the record is kept; without this, a new record is kept for ever and an old one as before
    #[arg(long, value_parser = duration)]
    ttl: Option<Duration>,
    /// Only if this is still the version
    #[arg(long, value_name = "VERSION")]
    if_match: Option<String>,
    /// Also print the new version (ETag)
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
    /// Only if this is still the version
    #[arg(long, value_name = "VERSION")]
    if_match: Option<String>,
}

pub(crate) async fn run(args: RecordArgs) -> anyhow::Result<ExitCode> {
    let RecordArgs { server, action } = args;
    exit_code_of(server.json, act(&server, action).await)
}

async fn act(server: &ServerArgs, action: Action) -> Result<ExitCode, CliError> {
    let client = server.client()?;
    match action {
        Action::Get(get) => {
            let response = client.send(request(Method::GET, &get.key)).await?;
            if get.show_version {
                version(&response);
                print_line("");
            }
            print_bytes(&response.body);
        }
        Action::Put(put) => {
            let body = read_value(put.value.as_deref())?;
            let none_match = put.if_none_match.then(|| "*".to_owned());
            let request = put.change.of(Method::PUT, &put.key, body);
            let response = client.send(request.header("if-none-match", none_match)).await?;
            stored(&response, put.change.show_version, server.json);
        }
        Action::Patch(patch) => {
            let body = read_value(patch.value.as_deref())?;
            let response = client.send(patch.change.of(Method::PATCH, &patch.key, body)).await?;
            if patch.change.show_version {
                version(&response);
                print_line("");
            }
            print_bytes(&response.body);
        }
        Action::Delete(delete) => {
            let version = delete.if_match.as_deref().map(entity_tag);
            client.send(request(Method::DELETE, &delete.key).header("if-match", version)).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Change {
    fn of(&self, method: Method, key: &str, body: Vec<u8>) -> ClientRequest {
        request(method, key)
            .query("ttl_ms", self.ttl.map(millis))
            .header("if-match", self.if_match.as_deref().map(entity_tag))
            .body(body)
    }
}

fn request(method: Method, key: &str) -> ClientRequest {
    ClientRequest::new(method, &["records", key])
}

/// A version for `If-Match`, from a text with or without its quotes.
fn entity_tag(version: &str) -> String {
    if version == "*" || version.contains('"') {
        version.to_owned()
    } else {
        format!("\"{version}\"")
    }
}

fn version(response: &ClientResponse) {
    if let Some(tag) = response.header("etag") {
        print_line(format_args!("ETag: {tag}"));
    }
    if let Some(ms) = response.header("hapax-expires-in-ms") {
        print_line(format_args!("Hapax-Expires-In-Ms: {ms}"));
    }
}

fn stored(response: &ClientResponse, show_version: bool, json: bool) {
    if show_version {
        version(response);
    }
    if json {
        print_bytes(&response.body);
    } else if !show_version {
        print_line(if response.status == StatusCode::CREATED { "created" } else { "changed" });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tag_adds_missing_quotes() {
        assert_eq!(entity_tag("3f"), "\"3f\"");
        assert_eq!(entity_tag("\"3f\""), "\"3f\"");
        assert_eq!(entity_tag("*"), "*");
    }
}
