//! The layers around every router: a panic becomes a problem document, and each request is measured,
//! logged and given an id. Requests that reach no router, because their headers do not arrive in time or
//! the HTTP library refuses them, get a problem document as well.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use hapax::Tenant;
use hapax::activity::{self, Activity, RequestActivity};
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use tokio::time::Instant;
use tower_http::catch_panic::CatchPanicLayer;

use super::metrics::RequestMetrics;
use crate::problem::{Problem, ProblemKind};

pub(crate) fn with_common_layers(router: Router) -> Router {
    router.layer(CatchPanicLayer::custom(panic_response)).layer(from_fn(log_request))
}

/// The panic hook has logged the place. The panic's text may contain keys or values and is dropped.
fn panic_response(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a request handler panicked");
    Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more").into_response()
}

/// The id of a request in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("hapax-request-id");

async fn log_request(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let recorded = route.map_or(RecordedAs::Nothing, RecordedAs::of);
    let mut metrics = RequestMetrics::new(request.method(), route.unwrap_or("unmatched").into());
    let id = random_id();
    (metrics.id, metrics.tenant) = (Some(id.clone()), Some("-".into()));
    let begun = Instant::now();
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(tenant) = response.extensions_mut().remove::<Tenant>() {
        metrics.tenant = Some(tenant.as_str().into());
        let result = RequestActivity::of_status(response.status().as_u16());
        let (tenant, took) = (&tenant, begun.elapsed());
        match recorded {
            RecordedAs::Nothing => {}
            RecordedAs::Request => activity::record(Activity::Request { tenant, result, took }),
            // A stream that was opened records its request when its first events are ready.
            RecordedAs::StreamRequest if response.status() == StatusCode::OK => {}
            RecordedAs::StreamRequest => {
                activity::record(Activity::StreamRequest { tenant, result, took: Some(took) });
            }
        }
    }
    metrics.status = response.status().as_u16();
    response
}

/// How requests of a route are recorded as activity of their tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordedAs {
    /// Not at all. Operators' requests are none: a console that is open would otherwise be activity, and would be told of it.
    Nothing,
    Request,
    StreamRequest,
}

impl RecordedAs {
    pub(crate) fn of(route: &str) -> Self {
        let parts: Vec<_> = route.split('/').skip(1).collect();
        match parts[..] {
            ["v1", "operator" | "queues" | "session", ..] => Self::Nothing,
            ["v1", "events", "stream"] | ["v1", "jobs", _, _, "events"] => Self::StreamRequest,
            _ => Self::Request,
        }
    }
}

fn random_id() -> String {
    let mut bytes = [0; 8];
    // Without randomness the id is zero; a request does not fail for its log id.
    let _ = getrandom::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}

/// Answers a known path with a method that it does not take.
pub(crate) async fn method_not_allowed() -> Problem {
    Problem::new(ProblemKind::MethodNotAllowed, "`Allow` lists the methods that it takes")
}

/// The response to headers that took too long.
pub(super) static TOO_SLOW: LazyLock<Vec<u8>> = LazyLock::new(|| {
    raw_response(ProblemKind::RequestTimeout, "the headers did not arrive in time")
});
static MALFORMED: LazyLock<Vec<u8>> =
    LazyLock::new(|| raw_response(ProblemKind::InvalidRequest, "the HTTP request is malformed"));
static TOO_LARGE: LazyLock<Vec<u8>> =
    LazyLock::new(|| raw_response(ProblemKind::HeadersTooLarge, "the headers are too large"));

/// The problem document that replaces a response which the HTTP library generated. Such a response
/// closes the connection, and has no body and no headers but these three.
pub(super) fn instead_of(answer: &[u8]) -> Option<&'static [u8]> {
    let line = answer.strip_prefix(b"HTTP/1.1 ").or(answer.strip_prefix(b"HTTP/1.0 "))?;
    let document: &[u8] = match line.get(..4)? {
        b"400 " => &MALFORMED,
        b"431 " | b"414 " => &TOO_LARGE,
        _ => return None,
    };
    let head = std::str::from_utf8(line).ok()?.strip_suffix("\r\n\r\n")?;
    let headers = || head.split("\r\n").skip(1);
    let generated = |header: &str| {
        ["connection: close", "content-length: 0"].contains(&header) || header.starts_with("date: ")
    };
    (headers().all(generated) && headers().any(|header| header == "connection: close"))
        .then_some(document)
}

fn raw_response(kind: ProblemKind, detail: &'static str) -> Vec<u8> {
    let document = Problem::new(kind, detail).document();
    format!(
        "HTTP/1.1 {}\r\nconnection: close\r\ncontent-type: application/problem+json\r\n\
         content-length: {}\r\n\r\n{document}",
        kind.status(),
        document.len(),
    )
    .into_bytes()
}
