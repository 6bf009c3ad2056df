//! `hapax record`: read, write, patch and delete records.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::millis;
use hyper::{Method, StatusCode};

use super::error::exit_code_of;
use super::{
    CliError, ClientRequest, ClientResponse, ServerActionArgs, ServerArgs, duration, print_bytes,
    print_line, read_value, with_exit_codes,
};

#[derive(Subcommand)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax record put user:U1:last_transaction '{\"amount\":120}' --ttl 1h
  hapax record get user:U1:last_transaction -i     with its version
  hapax record patch user:U1:last_transaction '{\"amount\":90}' --if-match 3f9a…
  hapax record delete user:U1:last_transaction

If the version of --if-match is not the stored one any more, nothing is changed and the exit code
is 4: read the record again and repeat the change."))]
pub(crate) enum RecordAction {
    /// Print a record
    #[command(after_help = with_exit_codes("\
Examples:
  hapax record get cart:17
  hapax record get cart:17 -i      ETag and time left first, then an empty line"))]
    Get {
        /// The record's name, 1 to 255 bytes of printable ASCII
        key: String,
        /// Also print the version (ETag) and the remaining time
        #[arg(short = 'i', long)]
        show_version: bool,
    },
    /// Store a record
    #[command(after_help = with_exit_codes("\
Examples:
  hapax record put cart:17 '{\"cups\":2}' --ttl 30m
  hapax record put cart:17 @cart.json --if-match 3f9a…
  jq .cart order.json | hapax record put cart:17 --if-none-match"))]
    Put {
        /// The record's name
        key: String,
        /// JSON; `@FILE` reads a file; `-` or nothing reads standard input
        value: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
        /// Only if there is no such record yet
        #[arg(long, conflicts_with = "if_match")]
        if_none_match: bool,
    },
    /// Change some fields of a record (JSON merge patch) and print the result
    #[command(after_help = with_exit_codes("\
Examples:
  hapax record patch cart:17 '{\"cups\":3}'           changes one field
  hapax record patch cart:17 '{\"note\":null}'        removes one
  hapax record patch cart:17 @change.json --if-match 3f9a…"))]
    Patch {
        /// The record's name
        key: String,
        /// A merge patch; `@FILE` reads a file; `-` or nothing reads standard input
        value: Option<String>,
        #[command(flatten)]
        change: ChangeArgs,
    },
    /// Delete a record
    #[command(after_help = with_exit_codes("\
Examples:
  hapax record delete cart:17
  hapax record delete cart:17 --if-match 3f9a…"))]
    Delete {
        /// The record's name
        key: String,
        /// Only if this is still the version
        #[arg(long, value_name = "VERSION")]
        if_match: Option<String>,
    },
}

#[derive(clap::Args)]
pub(crate) struct ChangeArgs {
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

pub(crate) async fn run(args: ServerActionArgs<RecordAction>) -> anyhow::Result<ExitCode> {
    exit_code_of(args.server.json, act(&args.server, args.action).await)
}

async fn act(server: &ServerArgs, action: RecordAction) -> Result<(), CliError> {
    let client = server.client()?;
    match action {
        RecordAction::Get { key, show_version } => {
            print_record(&client.send(request(Method::GET, &key)).await?, show_version);
        }
        RecordAction::Put { key, value, change, if_none_match } => {
            let request = change.request(Method::PUT, &key, value)?;
            let none_match = if_none_match.then(|| "*".to_owned());
            let response = client.send(request.header("if-none-match", none_match)).await?;
            if change.show_version {
                print_version(&response);
            }
            if server.json {
                print_bytes(&response.body);
            } else if !change.show_version {
                let created = response.status == StatusCode::CREATED;
                print_line(if created { "created" } else { "changed" });
            }
        }
        RecordAction::Patch { key, value, change } => {
            let response = client.send(change.request(Method::PATCH, &key, value)?).await?;
            print_record(&response, change.show_version);
        }
        RecordAction::Delete { key, if_match } => {
            let version = if_match.as_deref().map(entity_tag);
            client.send(request(Method::DELETE, &key).header("if-match", version)).await?;
        }
    }
    Ok(())
}

impl ChangeArgs {
    fn request(
        &self,
        method: Method,
        key: &str,
        value: Option<String>,
    ) -> Result<ClientRequest, CliError> {
        Ok(request(method, key)
            .query("ttl_ms", self.ttl.map(millis))
            .header("if-match", self.if_match.as_deref().map(entity_tag))
            .body(read_value(value.as_deref())?))
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

fn print_record(response: &ClientResponse, show_version: bool) {
    if show_version {
        print_version(response);
        print_line("");
    }
    print_bytes(&response.body);
}

fn print_version(response: &ClientResponse) {
    for name in ["ETag", "Hapax-Expires-In-Ms"] {
        if let Some(value) = response.header(name) {
            print_line(format_args!("{name}: {value}"));
        }
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
