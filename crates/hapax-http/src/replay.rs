use std::time::Duration;

use bytes::Bytes;
use hapax_core::command;
use hapax_core::{Clock, SystemClock};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderName, HeaderValue, SET_COOKIE};
use http::response::Parts;
use http::{HeaderMap, Response, StatusCode};

use crate::Problem;

/// Marks the tombstone of an answer that was too large to keep.
const NOT_KEPT: &str = "hapax-response-not-kept";

const HOP_BY_HOP: [&str; 8] = [
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
pub fn keep(parts: &Parts, body: Bytes) -> command::Response {
    let headers = parts
        .headers
        .iter()
        .filter(|(name, _)| is_kept(name, &parts.headers))
        .map(|(name, value)| (name.as_str().to_owned(), Bytes::copy_from_slice(value.as_bytes())))
        .collect();
    command::Response { status: parts.status.as_u16(), headers, body }
}

/// The tombstone of an answer that was too large to keep.
pub fn not_kept(status: StatusCode) -> command::Response {
    let headers = vec![(NOT_KEPT.to_owned(), Bytes::from_static(b"too large"))];
    command::Response { status: status.as_u16(), headers, body: Bytes::new() }
}

fn is_kept(name: &HeaderName, headers: &HeaderMap) -> bool {
    let named_by_connection = || {
        let lines = headers.get_all(CONNECTION).iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|n| n.trim().eq_ignore_ascii_case(name.as_str()))
    };
    // The length is that of the body, and is written again with it.
    !(*name == SET_COOKIE
        || *name == DATE
        || *name == CONNECTION
        || *name == CONTENT_LENGTH
        || HOP_BY_HOP.contains(&name.as_str())
        || named_by_connection())
}

/// The answer of the first one, for somebody who asks again.
pub fn replay(stored: &command::Response, expires_in: Duration) -> Response<Bytes> {
    let broken = || {
        let (title, detail) = ("The stored answer cannot be sent", "it was not written by hapax");
        Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", title, detail).response()
    };
    let Ok(status) = StatusCode::from_u16(stored.status) else { return broken() };
    if stored.headers.iter().any(|(name, _)| name == NOT_KEPT) {
        return Problem::new(
            StatusCode::CONFLICT,
            "response-not-kept",
            "It ran, but its answer was too large to keep",
            "the effect happened and nothing runs again; ask the service for its outcome",
        )
        .with("original_status", stored.status)
        .response();
    }
    let mut response = Response::new(stored.body.clone());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    for (name, value) in &stored.headers {
        match (HeaderName::try_from(name), HeaderValue::from_maybe_shared(value.clone())) {
            (Ok(name), Ok(value)) => headers.append(name, value),
            _ => return broken(),
        };
    }
    headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
    let expires = SystemClock.now().plus(expires_in);
    let expires = std::time::UNIX_EPOCH + Duration::from_millis(expires.0);
    if let Ok(value) = HeaderValue::try_from(httpdate::fmt_http_date(expires)) {
        headers.insert("idempotency-expires", value);
    }
    response
}
