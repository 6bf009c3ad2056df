//! `hapax tenant`: the tenants of a store.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Subcommand;
use hapax::OpenMode;
use serde_json::json;

use super::error::exit_code_of;
use super::{CliError, print_line, with_exit_codes};
use crate::daemon::{default_store_config, missing_file};

/// How many tenants are asked for at once.
const PAGE: u32 = 1000;

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
On Redis this walks over all keys, in small steps: some seconds for a million of them."))]
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
    let (mut names, mut after) = (BTreeSet::new(), None);
    loop {
        let page = store.tenants(after.as_deref(), PAGE).await.map_err(failed)?;
        names.extend(page.tenants.iter().map(|tenant| tenant.as_str().to_owned()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if json {
        print_line(json!({"tenants": names}));
    } else {
        names.iter().for_each(print_line);
    }
    Ok(())
}
