//! What is said to those whose request does not run.

use std::time::Duration;

use hapax_core::command::{self, Begun, CommandError};
use hapax_core::{Claimed, StoreError, Ticket};
use http::Response;

use crate::{Event, Keyed, Problem, ProblemKind, Whole, replay};

/// The answer for a command that is not granted, and what to call it.
pub(crate) fn answer(begun: &Begun, waited: bool) -> (Event, Response<Whole>) {
    match begun {
        Begun::Completed { response, expires_in } => {
            let event = if waited { Event::Waited } else { Event::Replayed };
            (event, replay(response, *expires_in))
        }
        Begun::InProgress { retry_after } => {
            (Event::Conflict, in_progress(*retry_after).response())
        }
        Begun::KeyReused => (Event::Mismatch, key_reused().response()),
        Begun::OutcomeUnknown { since } => (Event::Unknown, outcome_unknown(*since).response()),
        Begun::Granted { .. } => unreachable!("a granted command is running"),
    }
}

impl Keyed {
    /// What a claim inside your own transaction came to: the ticket and the attempt that it is, or
    /// the answer to give instead of running.
    pub fn granted(claimed: Claimed) -> Result<(Ticket, u32), Box<Response<Whole>>> {
        let begun = match claimed {
            Claimed::Granted { ticket, attempt } => return Ok((ticket, attempt)),
            Claimed::Busy { lease_left } => Begun::InProgress { retry_after: lease_left },
            Claimed::Mismatch => Begun::KeyReused,
            Claimed::Unknown { since } => Begun::OutcomeUnknown { since },
            Claimed::Settled { value, expires_in } => {
                match command::StoredResponse::decode(value) {
                    Ok(response) => Begun::Completed { response, expires_in },
                    Err(_) => return Err(Box::new(unreadable().response())),
                }
            }
        };
        Err(Box::new(answer(&begun, false).1))
    }
}

pub(crate) fn in_progress(retry_after: Duration) -> Problem {
    Problem::new(
        ProblemKind::InProgress,
        "the first request with this key has no response yet; send the request again",
    )
    .retry_after(retry_after)
}

fn key_reused() -> Problem {
    Problem::new(
        ProblemKind::KeyReused,
        "this key was used with another path, query, content type or body; use a new one",
    )
}

pub(crate) fn outcome_unknown(since: Duration) -> Problem {
    Problem::new(
        ProblemKind::OutcomeUnknown,
        "an earlier attempt ended without a response; find out whether it acted, then settle or \
         release the key",
    )
    .with("since_ms", hapax_core::millis(since))
}

/// The service panicked, or its runtime ended.
pub(crate) fn crashed() -> Problem {
    Problem::new(
        ProblemKind::OutcomeUnknown,
        "the service crashed while it handled the request; it may or may not have acted, and a \
         retry does not run it again",
    )
}

/// The service's response ended early, before any of it was sent on.
pub(crate) fn cut() -> Problem {
    Problem::new(
        ProblemKind::OutcomeUnknown,
        "the service's response ended early; it may or may not have acted, and a retry does not \
         run it again",
    )
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(ProblemKind::ShuttingDown, "nothing was run; send the request again")
}

pub(crate) fn failed(error: &CommandError) -> Problem {
    match error {
        CommandError::Store(error) if !matches!(error, StoreError::Corrupt { .. }) => {
            Problem::new(ProblemKind::StoreUnavailable, "nothing was run; try again")
        }
        _ => unreadable(),
    }
}

fn unreadable() -> Problem {
    Problem::new(
        ProblemKind::Internal,
        "the stored response is damaged or was written by another version; nothing was run",
    )
}
