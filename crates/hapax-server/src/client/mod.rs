//! Each feature from the shell, against a running server or a store.

pub(crate) mod audit;
mod backend;
pub(crate) mod command;
pub(crate) mod dead;
pub(crate) mod error;
pub(crate) mod follow;
pub(crate) mod inbox;
pub(crate) mod lock;
mod note;
pub(crate) mod overview;
pub(crate) mod publish;
pub(crate) mod queue;
pub(crate) mod record;
mod server_client;
pub(crate) mod task;
pub(crate) mod tenant;
mod terminal;
pub(crate) mod token;

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

pub(crate) use backend::{
    ApiArgs, ApiCommandArgs, Backend, LockRefusal, LockTicket, ServerActionArgs, ServerArgs,
    TicketArgs,
};
pub(crate) use error::CliError;
pub(crate) use server_client::{ClientRequest, ClientResponse, ServerClient};
pub(crate) use terminal::{
    ListPage, PageArgs, columns, print_bytes, print_line, print_note, print_response, progress_bar,
    read_value, shown_key,
};

/// The exit codes, as every command's `--help` shows them. 69 and 75 are those of `sysexits.h`.
const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   refused, or something went wrong
  2   the command line is wrong
  3   there is no such record, command or dead letter
  4   conflict: another version, another owner, another fingerprint, or an unknown outcome
  69  the server or its store cannot be reached
  75  another owner has it just now; try again";

/// The examples of a command, then the exit codes.
pub(crate) fn with_exit_codes(examples: &str) -> String {
    format!("{examples}\n\n{EXIT_CODES}")
}

/// A duration as people write it: `500ms`, `30s`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error} (as in 500ms, 30s or 2h)"))
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  hapax completions bash > ~/.local/share/bash-completion/completions/hapax
  hapax completions zsh > ~/.zfunc/_hapax
  hapax completions fish > ~/.config/fish/completions/hapax.fish")]
pub(crate) struct CompletionsArgs {
    /// For which shell
    shell: Shell,
}

/// Prints the completions for a shell.
pub(crate) async fn print_completions(args: CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "hapax", &mut script);
    print_bytes(&script);
    Ok(ExitCode::SUCCESS)
}
