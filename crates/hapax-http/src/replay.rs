//! The stored form of a response, and what a request gets that does not run: the first one's
//! response, or a problem.

use std::time::Duration;

use bytes::Bytes;
use hapax_core::command::{Begun, CommandError, StoredResponse};
use hapax_core::{Clock, StoreError, SystemClock, Ticket};
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, SET_COOKIE, TRAILER,
};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::{FullBody, IdempotencyEvent, Problem, ProblemKind};

/// Marks a tombstone. No header of HTTP has such a name.
const NOT_KEPT: &str = "hapax:not-kept";

/// The prefix of a stored trailer's name. No header of HTTP has such a name.
const TRAILER_PREFIX: &str = "trailer:";

const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The result of a claim: run the request, or respond without running it.
pub(crate) enum RunOrRespond {
    Run { ticket: Ticket, attempt: u32 },
    Respond(IdempotencyEvent, Box<Response<FullBody>>),
}

/// Decides what becomes of a request by the result of its claim.
pub(crate) fn decide(begun: Result<Begun, CommandError>) -> RunOrRespond {
    let (event, response) = match begun {
        Ok(Begun::Granted { ticket, attempt }) => return RunOrRespond::Run { ticket, attempt },
        Ok(Begun::Completed { response, expires_in }) => {
            (IdempotencyEvent::Replayed, replay(&response, expires_in))
        }
        Ok(Begun::InProgress { retry_after }) => {
            (IdempotencyEvent::Conflict, in_progress(retry_after).response())
        }
        Ok(Begun::KeyReused) => {
            let detail =
                "this key was used with another path, query, content type or body; use a new one";
            (IdempotencyEvent::Mismatch, Problem::new(ProblemKind::KeyReused, detail).response())
        }
        Ok(Begun::OutcomeUnknown { since }) => {
            (IdempotencyEvent::Unknown, outcome_unknown(since).response())
        }
        Err(error) => (IdempotencyEvent::StoreError, claim_failed(&error).response()),
    };
    RunOrRespond::Respond(event, Box::new(response))
}

pub(crate) fn in_progress(retry_after: Duration) -> Problem {
    Problem::new(
        ProblemKind::InProgress,
        "the first request with this key has no response yet; send the request again",
    )
    .retry_after(retry_after)
}

pub(crate) fn outcome_unknown(since: Duration) -> Problem {
    Problem::new(
        ProblemKind::OutcomeUnknown,
        "an earlier attempt ended without a response; find out whether it acted, then settle or \
         release the key",
    )
    .with("since_ms", hapax_core::millis(since))
}

fn claim_failed(error: &CommandError) -> Problem {
    match error {
        CommandError::Store(error) if !matches!(error, StoreError::Corrupt { .. }) => {
            Problem::new(ProblemKind::StoreUnavailable, "nothing was run; try again")
        }
        _ => Problem::new(
            ProblemKind::Internal,
            "the stored response is damaged or was written by another version; nothing was run",
        ),
    }
}

/// The stored form of a response: everything that is valid for a later client. `Set-Cookie`, `Date`
/// and hop-by-hop headers are left out.
pub fn capture(parts: &Parts, body: Bytes) -> StoredResponse {
    let named = named_by_connection(&parts.headers);
    let headers = parts
        .headers
        .iter()
        .filter(|(name, _)| is_kept(name) && !named.iter().any(|n| n == name.as_str()))
        .map(stored_header)
        .collect();
    StoredResponse { status: parts.status.as_u16(), headers, body }
}

fn stored_header((name, value): (&HeaderName, &HeaderValue)) -> (String, Bytes) {
    (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))
}

pub(crate) fn add_trailers(
    mut stored: StoredResponse,
    trailers: Option<&HeaderMap>,
) -> StoredResponse {
    let trailers = trailers.into_iter().flatten().map(stored_header);
    let prefixed = trailers.map(|(name, value)| (format!("{TRAILER_PREFIX}{name}"), value));
    stored.headers.extend(prefixed);
    stored
}

/// Stored instead of a response that is not kept: the request ran, and must not run again.
pub fn tombstone(status: StatusCode) -> StoredResponse {
    let headers = vec![(NOT_KEPT.to_owned(), Bytes::from_static(b"true"))];
    StoredResponse { status: status.as_u16(), headers, body: Bytes::new() }
}

/// Whether the head is small enough to be stored. The stored form counts headers in 16 bits.
pub(crate) fn fits(head: &StoredResponse, max: usize) -> bool {
    let size: usize = head.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    size <= max && head.headers.len() <= usize::from(u16::MAX / 2)
}

fn is_kept(name: &HeaderName) -> bool {
    // The length follows from the stored body.
    !(*name == SET_COOKIE
        || *name == DATE
        || *name == CONTENT_LENGTH
        || HOP_BY_HOP.contains(&name.as_str()))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The response of the first request, for a retry.
pub fn replay(stored: &StoredResponse, expires_in: Duration) -> Response<FullBody> {
    if stored.headers.iter().any(|(name, _)| name == NOT_KEPT) {
        return Problem::new(
            ProblemKind::ResponseNotKept,
            "it was too large, or an event stream; a retry runs nothing: ask the service for the \
             outcome",
        )
        .with("original_status", stored.status)
        .response();
    }
    restore(stored, expires_in).unwrap_or_else(|| {
        Problem::new(ProblemKind::Internal, "the stored response is not valid HTTP").response()
    })
}

/// `None` where the stored value is not a valid response.
fn restore(stored: &StoredResponse, expires_in: Duration) -> Option<Response<FullBody>> {
    let status = StatusCode::from_u16(stored.status).ok().filter(|s| !s.is_informational())?;
    let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
    for (name, value) in &stored.headers {
        let value = HeaderValue::from_maybe_shared(value.clone()).ok()?;
        let (to, name) = match name.strip_prefix(TRAILER_PREFIX) {
            Some(name) => (&mut trailers, name),
            None => (&mut headers, name.as_str()),
        };
        let name = HeaderName::try_from(name).ok()?;
        // An operator may have settled the key with any headers.
        if is_kept(&name) {
            to.append(name, value);
        }
    }
    for name in trailers.keys() {
        headers.append(TRAILER, name.clone().into());
    }
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    headers.insert("idempotency-expires", http_date(expires_in)?);
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let mut response = Response::new(FullBody::new(stored.body.clone(), trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(response)
}

/// The moment `from_now` as an HTTP date, at most the end of the year 9999.
fn http_date(from_now: Duration) -> Option<HeaderValue> {
    const LAST: u64 = 253_402_300_799_000;
    let moment = Duration::from_millis(SystemClock.now().plus(from_now).0.min(LAST));
    HeaderValue::try_from(httpdate::fmt_http_date(std::time::UNIX_EPOCH + moment)).ok()
}
