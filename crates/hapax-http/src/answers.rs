//! What is said to those whose request does not run.

use std::time::Duration;

use hapax_core::command::{self, Begun, CommandError};
use hapax_core::{Claimed, Ticket};
use http::{Response, StatusCode};

use crate::{Event, Keyed, Problem, Whole, replay};

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
            Claimed::Settled { value, expires_in } => match command::Response::decode(value) {
                Ok(response) => Begun::Completed { response, expires_in },
                Err(_) => return Err(Box::new(unreadable().response())),
            },
        };
        Err(Box::new(answer(&begun, false).1))
    }
}

pub(crate) fn in_progress(retry_after: Duration) -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "in-progress",
        "The first request with this key still runs",
        "its answer will be there when it is done; ask again",
    )
    .retry_after(retry_after)
}

fn key_reused() -> Problem {
    Problem::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "key-reused",
        "The Idempotency-Key belongs to another request",
        "this key was used with another path, query, content type or body; use a new one",
    )
}

pub(crate) fn outcome_unknown(since: Duration) -> Problem {
    Problem::new(
        StatusCode::CONFLICT,
        "outcome-unknown",
        "Nobody knows whether an earlier attempt had its effect",
        "it ended without an answer; look at the service, then settle or release the key",
    )
    .with("since_ms", hapax_core::millis(since))
}

/// The service panicked, or its runtime ended.
pub(crate) fn crashed() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "outcome-unknown",
        "The service crashed in the middle",
        "it may or may not have had its effect; a retry does not run it again unasked",
    )
}

/// The service's answer broke off before any of it was sent on.
pub(crate) fn cut() -> Problem {
    Problem::new(
        StatusCode::BAD_GATEWAY,
        "outcome-unknown",
        "The service's answer broke off",
        "it may or may not have had its effect; a retry does not run it again unasked",
    )
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "shutting-down",
        "This server is shutting down",
        "nothing was run; try again, another one will answer",
    )
    .retryable()
}

pub(crate) fn failed(error: &CommandError) -> Problem {
    match error {
        CommandError::Store(hapax_core::StoreError::Corrupt { .. }) => unreadable(),
        CommandError::Store(_) => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "The store gives no answer",
            "nothing was run; try again",
        )
        .retryable(),
        _ => unreadable(),
    }
}

fn unreadable() -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "internal",
        "The stored answer cannot be read",
        "it was written by another version, or is damaged; nothing was run",
    )
}
