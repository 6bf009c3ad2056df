//! Each feature from the shell, against a running server.

mod api;
pub(crate) mod command;
pub(crate) mod completions;
mod connect;
mod desk;
pub(crate) mod failure;
pub(crate) mod follow;
pub(crate) mod inbox;
mod input;
mod link;
pub(crate) mod lock;
mod operator;
mod output;
pub(crate) mod publish;
pub(crate) mod queue;
pub(crate) mod record;
pub(crate) mod token;

pub(crate) use api::{Answer, Api, Call};
pub(crate) use connect::Connect;
pub(crate) use desk::{Desk, Direct};
pub(crate) use failure::Failure;
pub(crate) use output::{columns, line, note, print, show};

/// The exit codes, as every command's `--help` shows them. 69 and 75 are those of `sysexits.h`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
  0   done
  1   refused, or something went wrong
  2   the command line is wrong
  3   there is no such record, command or dead letter
  4   conflict: another version, another owner, another fingerprint, or an unknown outcome
  69  the server or its store cannot be reached
  75  somebody else has it just now; try again";

/// A duration as people write it: `500ms`, `30s`, `1h 30m`.
pub(crate) fn duration(text: &str) -> Result<std::time::Duration, String> {
    humantime::parse_duration(text).map_err(|error| format!("{error} (as in 500ms, 30s or 2h)"))
}
