//! `hapax token`: access tokens for the server.

use std::process::ExitCode;

use clap::{Subcommand, ValueEnum};
use hapax::Tenant;
use sha2::{Digest, Sha256};

use super::failure::finish;
use super::link::MakeLink;
use super::{Failure, line};

const EXAMPLES: &str = "\
Examples:
  hapax token new --name checkout --tenant shop --scope data
  hapax token new --name grafana --scope metrics
  hapax token new --name ops --scope data --scope admin

The token is shown this once: the server's file holds its hash alone. Give it to the client (in
HAPAX_TOKEN, or as `Authorization: Bearer …`), and append the [[token]] lines to hapax.toml.";

/// The arguments of `hapax token`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token; prints it, and the lines for hapax.toml
    #[command(after_help = EXAMPLES)]
    New(New),
    /// Sign a link with which a browser follows jobs; prints it
    Link(MakeLink),
}

#[derive(clap::Args)]
struct New {
    /// Whose token it is, for logs
    #[arg(long)]
    name: String,
    /// The tenant that its calls belong to
    #[arg(long, default_value = "default")]
    tenant: String,
    /// What it may do; may be repeated
    #[arg(long = "scope", value_enum, default_values = ["data"], value_delimiter = ',')]
    scopes: Vec<Scope>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Scope {
    /// Locks, records and commands
    Data,
    /// Settling and releasing others' claims
    Admin,
    /// Reading /metrics
    Metrics,
}

impl Scope {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
        }
    }
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::New(new) => finish(new.json, new.run()),
        Action::Link(link) => finish(link.json, link.run()),
    }
}

impl New {
    fn run(&self) -> Result<ExitCode, Failure> {
        Tenant::new(&self.tenant).map_err(|error| Failure::Usage(error.to_string()))?;
        let token = fresh()?;
        let sha256 = hex(&Sha256::digest(token.as_bytes()));
        let mut scopes: Vec<&str> = Vec::new();
        for scope in &self.scopes {
            if !scopes.contains(&scope.as_str()) {
                scopes.push(scope.as_str());
            }
        }
        if self.json {
            line(serde_json::json!({
                "token": token, "name": self.name, "sha256": sha256,
                "tenant": self.tenant, "scopes": scopes,
            }));
        } else {
            line(format_args!("{token}\n"));
            line("[[token]]");
            // A JSON text is a TOML basic string, too.
            line(format_args!("name = {}", serde_json::json!(self.name)));
            line(format_args!("sha256 = \"{sha256}\""));
            line(format_args!("tenant = {}", serde_json::json!(self.tenant)));
            line(format_args!("scopes = {}", serde_json::json!(scopes)));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// 256 random bits, with a prefix by which secret scanners can know it.
fn fresh() -> Result<String, Failure> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::Local(format!("the system gives no random numbers: {error}")))?;
    Ok(format!("hapax_{}", hex(&bytes)))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
