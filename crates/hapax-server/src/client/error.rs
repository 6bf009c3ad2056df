//! Errors of the command line: their text and their exit codes.

use std::process::{ExitCode, Termination};
use std::time::Duration;

use serde::Deserialize;

use super::ClientResponse;
use crate::background_writer::{LineImportance, write_to_stderr};

#[derive(Debug)]
pub(crate) enum CliError {
    Usage(String),
    Unreachable {
        server: String,
        reason: String,
    },
    Refused {
        problem: Box<ReceivedProblem>,
        /// The problem document as it came, for `--json`.
        raw: bytes::Bytes,
    },
    /// A store that was opened directly gave no answer.
    Store(String),
    /// Another owner has the lock in a store that was opened directly.
    Held(String),
    /// There is no such thing.
    Missing(String),
    /// A failure on this side.
    Local(String),
}

/// A problem document (RFC 9457) of the server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ReceivedProblem {
    #[serde(rename = "type")]
    kind: String,
    title: String,
    status: u16,
    detail: String,
    retry_after_ms: Option<u64>,
}

pub(crate) const ERROR: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const MISSING: u8 = 3;
pub(crate) const CONFLICT: u8 = 4;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const HELD: u8 = 75;

impl ReceivedProblem {
    /// The stable code at the end of the type.
    fn code(&self) -> &str {
        self.kind.rsplit(['/', '#', ':']).next().unwrap_or_default()
    }

    fn exit_code(&self) -> u8 {
        match (self.status, self.code()) {
            (_, "lock-held" | "in-progress" | "record-contended") | (429, _) => HELD,
            // Any other 404 is a path that the server does not have.
            (404, code) if code.ends_with("-missing") || code == "lock-free" => MISSING,
            (409 | 412 | 422, _) => CONFLICT,
            (408 | 502..=504, _) => UNAVAILABLE,
            _ => ERROR,
        }
    }

    fn advice(&self) -> Option<String> {
        let again = || match self.retry_after_ms {
            Some(ms) => format!("try again in {}", humantime::format_duration(rounded(ms))),
            None => "try again later".into(),
        };
        Some(match (self.status, self.code()) {
            (_, "lock-held") => format!("{}, or wait for it with --wait", again()),
            (_, "in-progress") => format!("{}; `command begin --wait` waits", again()),
            (_, "lock-lost") => "it expired, or never was this ticket's; another owner may be at \
                 work: stop, and do not write under the old fence"
                .into(),
            (_, "claim-lost") => "another owner has or finished it; `show` tells the state of a \
                 command"
                .into(),
            (_, "outcome-unknown") => "an earlier owner went away and may have acted: find out, \
                 then `settle` it, `release` it, or begin again with --on-unknown rerun"
                .into(),
            (_, "already-completed") => "`hapax command show` tells its answer".into(),
            (_, "key-reused") => "the key was used for something else before: use a new one".into(),
            (412, _) => "read it again with `hapax record get -i`, repeat the change, and send \
                 the new version with --if-match"
                .into(),
            (401 | 403, _) => "give an access token of the right scope by HAPAX_TOKEN or \
                 --token; `hapax token new` makes one"
                .into(),
            (503, "store-unavailable") => "the server's store does not answer; `hapax doctor \
                 --store URL` says why"
                .into(),
            (429 | 503, _) => again(),
            _ => return None,
        })
    }
}

/// Rounds up to whole seconds.
fn rounded(ms: u64) -> Duration {
    Duration::from_millis(if ms < 1_000 { ms } else { ms.div_ceil(1_000) * 1_000 })
}

impl CliError {
    /// The error for a response whose status is not 2xx.
    pub(crate) fn refused(response: &ClientResponse) -> Self {
        let mut problem: ReceivedProblem =
            serde_json::from_slice(&response.body).unwrap_or_default();
        problem.status = response.status.as_u16();
        if problem.title.is_empty() {
            problem.title = format!("the server answered {}", response.status);
        }
        Self::Refused { problem: Box::new(problem), raw: response.body.clone() }
    }

    pub(crate) fn not_hapax() -> Self {
        Self::Local("the server's answer cannot be read: is it a hapax server?".into())
    }

    pub(crate) fn has_code(&self, code: &str) -> bool {
        matches!(self, Self::Refused { problem, .. } if problem.code() == code)
    }

    /// Whether the same request may succeed later.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { problem, .. } => matches!(problem.status, 408 | 429 | 502..=504),
            _ => false,
        }
    }

    /// Whether the request itself is malformed or too large, so that nothing of it was done.
    pub(crate) fn is_bad_request(&self) -> bool {
        matches!(self, Self::Refused { problem, .. } if matches!(problem.status, 400 | 413))
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Unreachable { .. } | Self::Store(_) => UNAVAILABLE,
            Self::Refused { problem, .. } => problem.exit_code(),
            Self::Held(_) => HELD,
            Self::Missing(_) => MISSING,
            Self::Local(_) => ERROR,
        }
    }

    /// Prints the error to standard error and returns the exit code. Does not wait long for a reader: a command that ran
    /// under a lease may have filled the pipe.
    pub(crate) fn report(&self, json: bool) -> ExitCode {
        let text = match self {
            Self::Refused { raw, .. } if json && !raw.is_empty() => {
                String::from_utf8_lossy(raw).trim_end().to_owned()
            }
            _ => format!("hapax: {}", self.message()),
        };
        write_to_stderr(format!("{text}\n").as_bytes(), LineImportance::Error);
        self.exit_code().into()
    }

    /// The text of the error, in one to three lines.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Usage(text)
            | Self::Store(text)
            | Self::Held(text)
            | Self::Missing(text)
            | Self::Local(text) => text.clone(),
            Self::Unreachable { server, reason } => format!(
                "no answer from {server}: {reason}\n  is `hapax serve` running there? Another \
                 address goes into HAPAX_SERVER or --server"
            ),
            Self::Refused { problem, .. } => {
                let code = match problem.code() {
                    "" => problem.status.to_string(),
                    code => format!("{} {code}", problem.status),
                };
                let mut text = format!("{} ({code})", problem.title);
                for more in [Some(problem.detail.clone()), problem.advice()].into_iter().flatten() {
                    if !more.is_empty() && more != problem.title {
                        text.push_str("\n  ");
                        text.push_str(&more);
                    }
                }
                text
            }
        }
    }
}

/// The exit code of a command, after its error was printed.
pub(crate) fn exit_code_of(
    json: bool,
    outcome: Result<impl Termination, CliError>,
) -> anyhow::Result<ExitCode> {
    Ok(outcome.map_or_else(|error| error.report(json), Termination::report))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(status: u16, code: &str) -> ReceivedProblem {
        let kind = format!("https://hapax.dev/problems/{code}");
        ReceivedProblem { kind, status, ..ReceivedProblem::default() }
    }

    #[test]
    fn problem_codes_map_to_exit_codes() {
        for (status, code, exit) in [
            (409, "lock-held", 75),
            (409, "in-progress", 75),
            (429, "too-many-requests", 75),
            (409, "lock-lost", 4),
            (409, "claim-lost", 4),
            (409, "outcome-unknown", 4),
            (409, "already-completed", 4),
            (412, "version-mismatch", 4),
            (422, "key-reused", 4),
            (409, "record-contended", 75),
            (404, "record-missing", 3),
            (404, "command-missing", 3),
            (404, "not-found", 1),
            (503, "store-unavailable", 69),
            (400, "bad-request", 1),
            (401, "unauthorized", 1),
        ] {
            assert_eq!(problem(status, code).exit_code(), exit, "{status} {code}");
        }
    }

    #[test]
    fn refusal_message_has_title_code_and_advice() {
        let mut held = problem(409, "lock-held");
        held.title = "The lock is held".into();
        held.retry_after_ms = Some(2_100);
        let text =
            CliError::Refused { problem: Box::new(held), raw: bytes::Bytes::new() }.message();
        assert_eq!(
            text,
            "The lock is held (409 lock-held)\n  try again in 3s, or wait for it with --wait"
        );
    }
}
