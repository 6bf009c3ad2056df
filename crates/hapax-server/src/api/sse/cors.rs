//! CORS: sites named in the settings may read jobs and events.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use super::signed_link::accepts_signed_link;
use crate::api::app::AppState;

/// Answers preflight requests, and adds the CORS headers for allowed origins.
pub(crate) async fn add_headers(
    State(app): State<AppState>,
    request: Request,
    next: Next,
) -> Response {
    let Some(origin) =
        allowed_origin(&app, request.method(), request.uri().path(), request.headers())
    else {
        return next.run(request).await;
    };
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response = if is_preflight { preflight_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    let readable = HeaderValue::from_static("hapax-request-id, retry-after");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, readable);
    response
}

fn preflight_response() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "authorization, last-event-id, cache-control"),
        (ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The request's origin, if it may read this path.
pub(crate) fn allowed_origin(
    app: &AppState,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    let method = match headers.get(ACCESS_CONTROL_REQUEST_METHOD) {
        Some(wanted) if *method == Method::OPTIONS => Method::from_bytes(wanted.as_bytes()).ok()?,
        _ => method.clone(),
    };
    let origin = headers.get(ORIGIN)?;
    let may =
        accepts_signed_link(&method, path) && app.settings.sse_origins.allow(origin.to_str().ok()?);
    may.then(|| origin.clone())
}
