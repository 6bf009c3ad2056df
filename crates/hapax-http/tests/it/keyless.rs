//! A request without a key costs nothing: the layer allocates nothing for it.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response};
use axum::routing::any;
use bytes::Bytes;
use futures_util::FutureExt;
use hapax_http::{BoxError, IdempotencyLayer};
use http_body_util::{BodyExt, Full};
use tower::util::{MapRequestLayer, MapResponseLayer};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::common::memory;

const METHODS: [Method; 2] = [Method::GET, Method::POST];
const ANSWER: &str = "order 17";

fn layer() -> IdempotencyLayer {
    IdempotencyLayer::new(memory().0)
}

fn request<B: From<&'static str>>(method: &Method) -> Request<B> {
    let head = Request::builder().method(method).uri("/orders").header("authorization", "Bearer a");
    head.body("two cups".into()).unwrap()
}

/// How often a request allocates, from the call to the last byte of its response. The counter is of this thread alone,
/// and nothing here runs in another one.
fn allocations<S, B, R>(service: S, request: Request<B>) -> u64
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: http_body::Body<Data = Bytes>,
{
    let measured = allocation_counter::measure(|| {
        let respond = async {
            let response = service.oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200);
            let body = response.into_body().collect().await;
            assert!(body.is_ok_and(|body| body.to_bytes() == ANSWER));
        };
        respond.now_or_never().expect("nothing has to be waited for");
    });
    measured.count_total
}

/// Reads the request to its end and responds.
async fn handle<B: http_body::Body>(
    request: Request<B>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    assert!(request.into_body().collect().await.is_ok());
    Ok(Response::new(ANSWER.into()))
}

#[test]
fn keyless_request_allocates_nothing_in_the_layer() {
    for method in METHODS {
        let bare = allocations(service_fn(handle), request::<Full<Bytes>>(&method));
        let layered =
            allocations(layer().layer(service_fn(handle)), request::<Full<Bytes>>(&method));
        assert_eq!(layered, bare, "{method}");
    }

    let mut keyed = request::<Full<Bytes>>(&Method::POST);
    keyed.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    let mut service = layer().layer(service_fn(handle));
    let counted = allocation_counter::measure(|| drop(service.call(keyed)));
    assert!(counted.count_total > 0, "the counter counts");
}

/// axum boxes every body that is not its own, on the way in and on the way out, and a layer that has fields when it
/// clones a route. So the layer is compared with another one that has a field and changes the types of both bodies.
#[test]
fn keyless_request_in_axum_costs_only_axums_own_boxes() {
    let router = || Router::new().route("/orders", any(async |_: Bytes| ANSWER));
    let field = Arc::new(());
    let changes_bodies = (
        MapRequestLayer::new(move |request: Request<Body>| {
            let _ = &field;
            request.map(|body| body.map_err(BoxError::from))
        }),
        MapResponseLayer::new(|response: Response<Body>| {
            response.map(|body| body.map_err(BoxError::from))
        }),
    );
    for method in METHODS {
        let other = allocations(router().layer(changes_bodies.clone()), request::<Body>(&method));
        let layered = allocations(router().layer(layer()), request::<Body>(&method));
        assert_eq!(layered, other, "{method}");
    }
}
