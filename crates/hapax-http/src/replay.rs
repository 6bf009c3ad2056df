use std::time::Duration;

use bytes::Bytes;
use hapax_core::command;
use hapax_core::{Clock, SystemClock};
use http::header::{
    CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, SET_COOKIE, TRAILER,
};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::{Problem, ProblemKind, Whole};

/// Marks the tombstone of an answer that was not kept. No header of HTTP has such a name.
const NOT_KEPT: &str = "hapax:not-kept";

/// What comes before the name of a stored trailer; no header of HTTP has such a name.
const TRAILING: &str = "trailer:";

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

/// The stored form of an answer: everything that means the same to whoever gets it later. `Set-Cookie`,
/// `Date` and what belongs to one connection do not.
pub fn keep(parts: &Parts, body: Bytes) -> command::StoredResponse {
    let named = named_by_connection(&parts.headers);
    let headers = parts
        .headers
        .iter()
        .filter(|(name, _)| is_kept(name) && !named.iter().any(|n| n == name.as_str()))
        .map(stored)
        .collect();
    command::StoredResponse { status: parts.status.as_u16(), headers, body }
}

fn stored((name, value): (&HeaderName, &HeaderValue)) -> (String, Bytes) {
    (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes()))
}

pub(crate) fn add_trailers(
    mut to: command::StoredResponse,
    trailers: Option<&HeaderMap>,
) -> command::StoredResponse {
    let trailers = trailers.into_iter().flatten().map(stored);
    to.headers.extend(trailers.map(|(name, value)| (format!("{TRAILING}{name}"), value)));
    to
}

/// The tombstone of an answer that was not kept.
pub fn not_kept(status: StatusCode) -> command::StoredResponse {
    let headers = vec![(NOT_KEPT.to_owned(), Bytes::from_static(b"true"))];
    command::StoredResponse { status: status.as_u16(), headers, body: Bytes::new() }
}

/// Whether the head is small enough to be kept; the stored form counts headers in 16 bits.
pub(crate) fn fits(head: &command::StoredResponse, limit: usize) -> bool {
    let size: usize = head.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    size <= limit && head.headers.len() <= usize::from(u16::MAX / 2)
}

fn is_kept(name: &HeaderName) -> bool {
    // The length is that of the body, and is written again with it.
    !(*name == SET_COOKIE
        || *name == DATE
        || *name == CONTENT_LENGTH
        || HOP_BY_HOP.contains(&name.as_str()))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The answer of the first one, for somebody who asks again.
pub fn replay(stored: &command::StoredResponse, expires_in: Duration) -> Response<Whole> {
    if stored.headers.iter().any(|(name, _)| name == NOT_KEPT) {
        return Problem::new(
            ProblemKind::ResponseNotKept,
            "it was too large, or an event stream; a retry runs nothing: ask the service for the \
             outcome",
        )
        .with("original_status", stored.status)
        .response();
    }
    restored(stored, expires_in).unwrap_or_else(|| {
        Problem::new(ProblemKind::Internal, "the stored response is not valid HTTP").response()
    })
}

/// The response, or `None` where what is stored cannot be one.
fn restored(stored: &command::StoredResponse, expires_in: Duration) -> Option<Response<Whole>> {
    let status = StatusCode::from_u16(stored.status).ok().filter(|s| !s.is_informational())?;
    let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
    for (name, value) in &stored.headers {
        let value = HeaderValue::from_maybe_shared(value.clone()).ok()?;
        let (to, name) = match name.strip_prefix(TRAILING) {
            Some(name) => (&mut trailers, name),
            None => (&mut headers, name.as_str()),
        };
        let name = HeaderName::try_from(name).ok()?;
        // An operator may have settled it with anything.
        if is_kept(&name) {
            to.append(name, value);
        }
    }
    for name in trailers.keys() {
        headers.append(TRAILER, name.clone().into());
    }
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    headers.insert("idempotency-expires", date(expires_in)?);
    let trailers = Some(trailers).filter(|trailers| !trailers.is_empty());
    let mut response = Response::new(Whole::new(stored.body.clone(), trailers));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Some(response)
}

/// The moment `from_now`, as HTTP writes it, which knows years of four digits.
fn date(from_now: Duration) -> Option<HeaderValue> {
    const LAST: u64 = 253_402_300_799_000;
    let moment = Duration::from_millis(SystemClock.now().plus(from_now).0.min(LAST));
    HeaderValue::try_from(httpdate::fmt_http_date(std::time::UNIX_EPOCH + moment)).ok()
}
