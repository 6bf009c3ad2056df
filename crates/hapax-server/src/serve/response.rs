//! Successful responses.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::{Version, millis};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use serde::Serialize;

use super::problem::{Problem, ProblemKind};

/// What every handler returns.
pub(crate) type ApiResult = Result<Response, Problem>;

/// How long a record still exists, in milliseconds.
pub(crate) const HAPAX_EXPIRES: HeaderName = HeaderName::from_static("hapax-expires-in-ms");

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => raw_json_response(status, json),
        Err(_) => {
            Problem::new(ProblemKind::Internal, "the response cannot be encoded").into_response()
        }
    }
}

/// A response whose body is JSON already.
pub(crate) fn raw_json_response(status: StatusCode, json: impl IntoResponse) -> Response {
    let mut response = json.into_response();
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Adds the `ETag` of a record and, for one that expires, `Hapax-Expires-In-Ms`.
pub(crate) fn with_version_headers(
    mut response: Response,
    version: &Version,
    expires_in: Option<Duration>,
) -> ApiResult {
    let tag = HeaderValue::try_from(format!("\"{}\"", version.as_str())).map_err(|_| {
        Problem::new(ProblemKind::Internal, "the store returned a version that is not a valid ETag")
    })?;
    let headers = response.headers_mut();
    headers.insert(ETAG, tag);
    if let Some(time) = expires_in {
        headers.insert(HAPAX_EXPIRES, millis(time).into());
    }
    Ok(response)
}
