//! `hapax migrate`: creates a store's tables, or prints the SQL that does.

use std::process::ExitCode;
use std::time::Duration;

use hapax::StoreError;

use crate::client::error::exit_code_of;
use crate::client::{CliError, print_line};
use crate::daemon::default_store_config;

/// How long a migration may take: it may have to build an index over all rows.
const TIMEOUT: Duration = Duration::from_secs(3600);

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax migrate --store postgres://owner@db/app
  hapax migrate --store postgres://app@db/app --print > hapax.sql     for whoever has the rights
  hapax migrate --store sqlite:hapax.db

Servers, relays and gateways create and update the tables by themselves at their first start, where
their role may. Run this before, if it may not; the guide to stores lists the rights that it needs.
Safe to repeat, and to run while older nodes are at work.

Exit codes:
  0   the tables are up to date
  1   the store refused it, or was written by a newer hapax
  69  the store cannot be reached")]
pub(crate) struct MigrateArgs {
    /// The store: sqlite:FILE, postgres://…
    #[arg(long, env = "HAPAX_STORE", value_name = "URL", hide_env_values = true)]
    store: String,
    /// Print the SQL instead of running it, and change nothing
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(args: MigrateArgs) -> anyhow::Result<ExitCode> {
    let done = async {
        let config = default_store_config();
        let sql = hapax::migration_sql(&args.store, &config).await.map_err(failure)?;
        match sql {
            None => print_line("nothing to do: this store has no tables"),
            Some(sql) if sql.is_empty() && args.print => print_line("-- nothing to do"),
            Some(sql) if sql.is_empty() => print_line("nothing to do: the tables are up to date"),
            Some(sql) if args.print => print_line(sql.trim_end()),
            Some(_) => {
                migrate(&args.store).await.map_err(failure)?;
                print_line("the tables are up to date now");
            }
        }
        Ok(())
    };
    exit_code_of(false, done.await)
}

/// Creates the tables of a store, or brings them up to date.
pub(crate) async fn migrate(url: &str) -> Result<(), StoreError> {
    // A store migrates when it connects, and the ping connects it.
    hapax::open(url, &default_store_config().timeout(TIMEOUT))?.ping().await
}

fn failure(error: StoreError) -> CliError {
    match error.is_transient() {
        true => CliError::Store(error.to_string()),
        false => CliError::Local(error.to_string()),
    }
}
