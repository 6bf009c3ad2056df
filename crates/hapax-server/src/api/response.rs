//! Successful responses.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use hapax::{Version, millis};
use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderName, HeaderValue};
use serde::Serialize;

use crate::problem::{Problem, ProblemKind};

pub(crate) type ApiResult = Result<Response, Problem>;

/// How long a record still exists, in milliseconds.
pub(crate) const HAPAX_EXPIRES: HeaderName = HeaderName::from_static("hapax-expires-in-ms");

pub(crate) fn json_response(status: StatusCode, value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(json) => raw_json_response(status, json),
        Err(_) => {
            Problem::new(ProblemKind::Internal, "the response cannot be encoded").into_response()
        }
    }
}

pub(crate) fn raw_json_response(status: StatusCode, json: impl IntoResponse) -> Response {
    let mut response = json.into_response();
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
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
