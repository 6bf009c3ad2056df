//! `hapax completions`: what a shell needs to complete the command line.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::print;

const EXAMPLES: &str = "\
Examples:
  hapax completions bash > ~/.local/share/bash-completion/completions/hapax
  hapax completions zsh > ~/.zfunc/_hapax
  hapax completions fish > ~/.config/fish/completions/hapax.fish";

/// The arguments of `hapax completions`.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// For which shell
    shell: Shell,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "hapax", &mut script);
    print(&script);
    Ok(ExitCode::SUCCESS)
}
