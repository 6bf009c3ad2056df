//! Every route, and the layers around all of them.

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use hapax::Tenant;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::api::{commands, events, inbox, jobs, locks, operator, queues, records};
use super::app::AppState;
use super::pages::{self, openapi};
use super::problem::{Problem, ProblemKind};
use super::request::admission;
use super::response::raw_json_response;
use super::sse::cors;
use super::system;
use crate::daemon::RequestMetrics;

/// The complete API as one service.
pub(crate) fn new(app: &AppState) -> Router {
    let (router, mut api) = OpenApiRouter::with_openapi(openapi::ApiDoc::openapi())
        .routes(routes!(locks::take, locks::renew, locks::release, locks::show))
        .routes(routes!(records::read, records::write, records::merge, records::delete))
        .routes(routes!(commands::begin, commands::complete, commands::fail, commands::show))
        .routes(routes!(inbox::receive, inbox::settle, inbox::give_back))
        .routes(routes!(events::publish))
        .routes(routes!(events::follow))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::follow))
        .routes(routes!(queues::depth))
        .routes(routes!(queues::dead))
        .routes(routes!(queues::requeue))
        .routes(routes!(queues::discard))
        .routes(routes!(operator::list))
        .routes(routes!(operator::show, operator::settle, operator::release))
        .routes(routes!(operator::sweep))
        .routes(routes!(system::healthz))
        .routes(routes!(system::readyz))
        .routes(routes!(system::metrics))
        .split_for_parts();
    openapi::complete(&mut api);
    let api: Bytes = api.to_json().expect("the description becomes JSON").into();
    let router = router
        .route(
            "/openapi.json",
            get(|| async move { raw_json_response(StatusCode::OK, api.clone()) }),
        )
        .route("/docs", get(pages::docs_redirect))
        .route("/docs/", get(pages::docs_file))
        .route("/docs/{file}", get(pages::docs_file))
        .route("/", get(pages::status_page))
        .fallback(system::no_route)
        .method_not_allowed_fallback(system::no_method)
        .layer(from_fn_with_state(app.clone(), admission::admit))
        .layer(from_fn_with_state(app.clone(), cors::add_headers))
        .with_state(app.clone());
    with_common_layers(router)
}

/// Adds the layers that every response passes: a panic becomes a problem document, and each request
/// is measured, logged and given an id.
pub(crate) fn with_common_layers(router: Router) -> Router {
    router.layer(CatchPanicLayer::custom(panic_response)).layer(from_fn(log_request))
}

/// The panic hook has logged the place. The panic's text may contain keys or values and is dropped.
fn panic_response(_: Box<dyn std::any::Any + Send>) -> Response {
    tracing::error!("a request handler panicked");
    Problem::new(ProblemKind::Internal, "this is a bug; the server's log has more").into_response()
}

/// The id of a request in the log.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("hapax-request-id");

/// Measures and logs one request, and adds the headers that every response has.
pub(crate) async fn log_request(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let mut watched = RequestMetrics::new(request.method(), route.unwrap_or("unmatched").into());
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
    // Without randomness the id is zero; a request does not fail for its log id.
    let _ = getrandom::fill(&mut bytes);
    format!("{:016x}", u64::from_be_bytes(bytes))
}
