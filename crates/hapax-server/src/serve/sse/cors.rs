//! Pages of other sites that may read events and jobs, where the settings name them.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD,
    HeaderMap, HeaderValue, ORIGIN, VARY,
};
use hyper::{Method, StatusCode};

use super::signed_link::opens;
use crate::serve::app::App;

/// Answers a browser that asks beforehand, and lets pages read what they may.
pub(crate) async fn allow(State(app): State<App>, request: Request, next: Next) -> Response {
    let Some(origin) = allowed(&app, request.method(), request.uri().path(), request.headers())
    else {
        return next.run(request).await;
    };
    let asks_beforehand = request.method() == Method::OPTIONS;
    let mut response = if asks_beforehand { beforehand() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    let readable = HeaderValue::from_static("hapax-request-id, retry-after");
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, readable);
    response
}

fn beforehand() -> Response {
    let headers = [
        (ACCESS_CONTROL_ALLOW_METHODS, "GET"),
        (ACCESS_CONTROL_ALLOW_HEADERS, "authorization, last-event-id, cache-control"),
        (ACCESS_CONTROL_MAX_AGE, "600"),
    ];
    (StatusCode::NO_CONTENT, headers).into_response()
}

/// The page's site, where it may read what it asks for.
pub(crate) fn allowed(
    app: &App,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Option<HeaderValue> {
    let method = match headers.get(ACCESS_CONTROL_REQUEST_METHOD) {
        Some(wanted) if *method == Method::OPTIONS => Method::from_bytes(wanted.as_bytes()).ok()?,
        _ => method.clone(),
    };
    let origin = headers.get(ORIGIN)?;
    let may = opens(&method, path) && app.settings.sse_origins.allow(origin.to_str().ok()?);
    may.then(|| origin.clone())
}
