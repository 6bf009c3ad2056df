//! One log line and three metrics for each request. They say what was asked for by the route's
//! template: paths, queries and bodies identify people.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use hapax::{Tenant, meters};
use hyper::Method;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use metrics::{counter, gauge, histogram};
use tokio::time::Instant;

/// Names a request in the log, and nothing else.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("hapax-request-id");

/// Watches a request from its headers to its answer.
pub(crate) async fn observe(request: Request, next: Next) -> Response {
    let mut watched = Watched::new(&request);
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&watched.id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    watched.tenant = response.extensions_mut().remove::<Tenant>();
    watched.status = response.status().as_u16();
    response
}

/// Reports when it is dropped, which is also what happens when the client goes away.
struct Watched {
    id: String,
    method: &'static str,
    route: String,
    tenant: Option<Tenant>,
    status: u16,
    since: Instant,
}

/// The status of a request whose client went away, as other servers log it.
const CLIENT_GONE: u16 = 499;

impl Watched {
    fn new(request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        gauge!(meters::HTTP_IN_FLIGHT).increment(1.0);
        Self {
            id: random_id(),
            method: known(request.method()),
            route: route.unwrap_or("unmatched").to_owned(),
            tenant: None,
            status: CLIENT_GONE,
            since: Instant::now(),
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let Self { id, method, route, status, .. } = self;
        let (took, status) = (self.since.elapsed(), *status);
        let tenant = self.tenant.as_ref().map_or("-", Tenant::as_str);
        let ms = took.as_micros() as f64 / 1000.0;
        gauge!(meters::HTTP_IN_FLIGHT).decrement(1.0);
        histogram!(meters::HTTP_LATENCY, "route" => route.clone()).record(took);
        counter!(meters::HTTP_REQUESTS, "route" => route.clone(), "method" => *method,
            "status" => status.to_string())
        .increment(1);
        tracing::info!(method, route, status, ms, id, tenant, "request");
    }
}

/// Methods are whatever a client sends; labels are not.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "OTHER",
    }
}

fn random_id() -> String {
    let mut bytes = [0; 8];
    // An id that is not random is still an id; no request fails for it.
    let _ = getrandom::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}
