//! Answers that are successes.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::{Version, millis};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use serde::Serialize;

use super::problem::{Problem, ProblemKind};

/// What a handler returns.
pub(crate) type Answer = Result<Response, Problem>;

/// How long a record is still there.
pub(crate) const HAPAX_EXPIRES: HeaderName = HeaderName::from_static("hapax-expires-in-ms");

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => raw_json(status, json),
        Err(_) => {
            Problem::new(ProblemKind::Internal, "the answer cannot be written").into_response()
        }
    }
}

/// Bytes that are JSON.
pub(crate) fn raw_json(status: StatusCode, json: impl IntoResponse) -> Response {
    let mut response = json.into_response();
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Says which version of a record it is, and how long it is there.
pub(crate) fn versioned(
    mut response: Response,
    version: &Version,
    expires_in: Option<Duration>,
) -> Answer {
    let tag = HeaderValue::try_from(format!("\"{}\"", version.as_str())).map_err(|_| {
        Problem::new(ProblemKind::Internal, "the store gave a version that is no ETag")
    })?;
    let headers = response.headers_mut();
    headers.insert(ETAG, tag);
    if let Some(time) = expires_in {
        headers.insert(HAPAX_EXPIRES, millis(time).into());
    }
    Ok(response)
}
