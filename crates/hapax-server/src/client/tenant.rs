//! `hapax tenant`: the tenants of a store.

use std::process::ExitCode;

use clap::Subcommand;
use hapax::OpenMode;
use serde_json::json;

use super::error::exit_code_of;
use super::{CliError, print_line, with_exit_codes};
use crate::daemon::{default_store_config, missing_file};

/// How many tenants are listed.
const MOST: u32 = 10_000;

#[derive(clap::Args)]
#[command(after_help = with_exit_codes("\
Examples:
  hapax tenant list --store sqlite:hapax.db"))]
pub(crate) struct TenantArgs {
    #[command(subcommand)]
    action: TenantAction,
}

#[derive(Subcommand)]
enum TenantAction {
    /// List the tenants that have locks, commands, messages, records or jobs
    #[command(after_help = with_exit_codes("\
Examples:
  hapax tenant list --store sqlite:hapax.db
  hapax tenant list --store postgres://app@db/app --json

Only with a store: a token of a server sees its own tenant. A tenant that has nothing but
queued items is not listed: no store finds items by their tenant without reading all of them.
On Redis this scans all keys."))]
    List {
        /// The store
        #[arg(long, env = "HAPAX_STORE", value_name = "URL", hide_env_values = true)]
        store: String,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(args: TenantArgs) -> anyhow::Result<ExitCode> {
    let TenantAction::List { store, json } = args.action;
    exit_code_of(json, list(&store, json).await)
}

async fn list(url: &str, json: bool) -> Result<(), CliError> {
    if let Some(path) = missing_file(url) {
        return Err(CliError::Store(format!("there is no file {}", path.display())));
    }
    let failed = |error: hapax::StoreError| CliError::Store(format!("the store: {error}"));
    let config = default_store_config().mode(OpenMode::Existing);
    let store = hapax::open(url, &config).map_err(failed)?;
    let tenants = store.tenants(MOST).await.map_err(failed)?;
    let names: Vec<_> = tenants.iter().map(hapax::Tenant::as_str).collect();
    if json {
        print_line(json!({"tenants": names}));
    } else if !names.is_empty() {
        print_line(names.join("\n"));
    }
    Ok(())
}
