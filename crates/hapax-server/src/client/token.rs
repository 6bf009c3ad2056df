//! `hapax token`: access tokens for the server, and signed links with which a browser follows jobs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use hapax::{Clock, Key, SystemClock, Tenant};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::error::exit_code_of;
use super::{CliError, duration, print_line};
use crate::api::sse::signed_link::SignedLink;
use crate::settings::{SettingValue, SigningSecret, TokenScope, check_token_name};

const EXAMPLES: &str = "\
Examples:
  hapax token new --name checkout --tenant shop --scope data
  hapax token new --name grafana --scope metrics
  hapax token new --name dashboard --scope read          looks at everything, keys masked
  hapax token new --name ops --scope data --scope admin

The token is shown only once: the server's file holds its hash. Give it to the client (in
HAPAX_TOKEN, or as `Authorization: Bearer …`), and append the [[token]] lines to hapax.toml.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token; print it, and the lines for hapax.toml
    #[command(after_help = EXAMPLES)]
    New(New),
    /// Sign a link with which a browser follows jobs, and print it
    Link(LinkArgs),
}

#[derive(clap::Args)]
struct New {
    /// The name of the token's owner, for logs
    #[arg(long)]
    name: String,
    /// The tenant of the token's requests
    #[arg(long, default_value = "default")]
    tenant: String,
    /// A scope of the token; may be repeated
    #[arg(long = "scope", value_enum, default_values = ["data"], value_delimiter = ',')]
    scopes: Vec<TokenScope>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: TokenArgs) -> anyhow::Result<ExitCode> {
    match args.action {
        Action::New(new) => exit_code_of(new.json, new.run()),
        Action::Link(link) => exit_code_of(link.json, link.run()),
    }
}

impl New {
    fn run(&self) -> Result<(), CliError> {
        Tenant::new(&self.tenant).map_err(|error| CliError::Usage(error.to_string()))?;
        check_token_name(&self.name).map_err(|text| CliError::Usage(format!("--name: {text}")))?;
        let token = fresh()?;
        let sha256 = hex(&Sha256::digest(token.as_bytes()));
        let mut scopes: Vec<&str> = Vec::new();
        for scope in self.scopes.iter().map(|scope| scope.as_str()) {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        if self.json {
            print_line(json!({
                "token": token, "name": self.name, "sha256": sha256,
                "tenant": self.tenant, "scopes": scopes,
            }));
        } else {
            // A JSON string is also a TOML basic string.
            let [name, tenant, scopes] = [json!(self.name), json!(self.tenant), json!(scopes)];
            print_line(format_args!(
                "{token}\n\n[[token]]\nname = {name}\nsha256 = \"{sha256}\"\ntenant = {tenant}\n\
                 scopes = {scopes}"
            ));
        }
        Ok(())
    }
}

/// A token of 256 random bits, with a prefix for secret scanners.
fn fresh() -> Result<String, CliError> {
    let mut bytes = [0_u8; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| CliError::Local(format!("the system has no random numbers: {error}")))?;
    Ok(format!("hapax_{}", hex(&bytes)))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax token link --job scan/job-1
  hapax token link --job scan/1 --job scan/2 --ttl 10m --tenant shop
  curl -N \"http://127.0.0.1:8787/v1/jobs/scan/job-1/events?access=$(hapax token link --job scan/job-1)\"

EventSource sends no headers, so a page cannot present a token. A link replaces the token: until it
expires, it allows reading the jobs that it names, and nothing else. The secret is the server's
--sse-secret: every backend that has it can sign links by itself,
  link = BASE64URL(json) \".\" BASE64URL(HMAC-SHA256(secret, BASE64URL(json)))       (no padding)
  json = {\"tenant\":\"default\",\"jobs\":[[\"scan\",\"job-1\"]],\"expires\":1767225600}")]
struct LinkArgs {
    /// A job that the link opens, as `domain/job_id`; may be repeated
    #[arg(long = "job", required = true, value_name = "DOMAIN/JOB_ID")]
    jobs: Vec<String>,
    /// How long the link is valid
    #[arg(long, default_value = "1h", value_parser = duration, value_name = "TIME")]
    ttl: Duration,
    /// The tenant of the jobs
    #[arg(long, default_value = "default")]
    tenant: String,
    /// The server's --sse-secret
    #[arg(long, env = "HAPAX_SSE_SECRET", hide_env_values = true, value_name = "TEXT")]
    secret: String,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl LinkArgs {
    fn run(&self) -> Result<(), CliError> {
        let usage = |text: String| CliError::Usage(text);
        let secret = SigningSecret::parse(&self.secret)
            .map_err(|text| usage(format!("--secret: {text}")))?;
        let tenant = Tenant::new(&self.tenant).map_err(|error| usage(error.to_string()))?;
        let job = |text: &String| {
            let (domain, job_id) = text
                .split_once('/')
                .ok_or_else(|| usage("--job takes DOMAIN/JOB_ID, such as scan/job-1".into()))?;
            Key::job(&tenant, domain, job_id).map_err(|error| usage(error.to_string()))?;
            Ok((domain.to_owned(), job_id.to_owned()))
        };
        let jobs = self.jobs.iter().map(job).collect::<Result<_, CliError>>()?;
        let expires = SystemClock.now().plus(self.ttl).0.div_ceil(1000);
        let link =
            SignedLink { tenant: self.tenant.clone(), jobs, expires, id: Default::default() };
        let access = link.sign(&secret);
        if self.json {
            print_line(json!({"access": access, "expires": expires}));
        } else {
            print_line(access);
        }
        Ok(())
    }
}
