//! What is said about every request, and what every answer says.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use hapax::Tenant;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};

use crate::measure::Watched;

/// Names a request in the log, and nothing else.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("hapax-request-id");

/// Watches a request from its headers to its answer.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let mut watched = Watched::new(request.method(), route.unwrap_or("unmatched").into());
    let id = random_id();
    (watched.id, watched.tenant) = (Some(id.clone()), Some("-".into()));
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(tenant) = response.extensions_mut().remove::<Tenant>() {
        watched.tenant = Some(tenant.as_str().into());
    }
    watched.status = response.status().as_u16();
    response
}

fn random_id() -> String {
    let mut bytes = [0; 8];
    // An id that is not random is still an id; no request fails for it.
    let _ = getrandom::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}
