//! A command that does not outlive the process that holds its lock.
//!
//! Where hapax is killed the hard way, nobody renews the lock, and a command that went on would
//! soon be the second one at work. Linux can tie a process to its parent's life, but it has to ask
//! for that itself. So hapax starts itself, asks, and becomes the command.

use std::ffi::OsString;
use std::io;
use std::process::{Command, ExitCode};

use crate::client::note;

/// The arguments of the process in between.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The process to be tied to
    parent: i32,
    /// The command and its arguments
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// The command, tied to this process where that can be done.
#[cfg(target_os = "linux")]
pub(super) fn command(command: &[OsString]) -> Command {
    let mut tied = Command::new("/proc/self/exe");
    tied.args(["lock", "tied"]).arg(std::process::id().to_string()).arg("--").args(command);
    tied
}

/// The command.
#[cfg(not(target_os = "linux"))]
pub(super) fn command(command: &[OsString]) -> Command {
    let mut plain = Command::new(&command[0]);
    plain.args(&command[1..]);
    plain
}

/// Becomes the command; returns only where that fails.
pub(crate) fn run(args: Args) -> ExitCode {
    use std::os::unix::process::CommandExt;
    #[cfg(target_os = "linux")]
    tie();
    // The parent may have died before the tie was made.
    if std::os::unix::process::parent_id().cast_signed() != args.parent {
        return ExitCode::FAILURE;
    }
    let error = Command::new(&args.command[0]).args(&args.command[1..]).exec();
    note(format_args!("hapax: {}: {error}", args.command[0].to_string_lossy()));
    if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }.into()
}

#[cfg(target_os = "linux")]
fn tie() {
    // Where it is forbidden the command runs untied: it holds its lock all the same.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
}
