//! A request without a key costs nothing.

use std::convert::Infallible;
use std::future::ready;

use axum::http::{Request, Response};
use futures_util::FutureExt;
use hapax_http::IdempotencyLayer;
use http_body_util::Empty;
use tower::{Layer, Service, service_fn};

use crate::common::memory;

#[test]
fn keyless_request_allocates_nothing_in_the_layer() {
    let layer = IdempotencyLayer::new(memory().0);
    let mut service = layer.layer(service_fn(|_| {
        ready(Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new())))
    }));
    let request = || Request::post("/orders").body(Empty::<bytes::Bytes>::new()).unwrap();
    let keyless = request();
    let allocations = allocation_counter::measure(|| {
        let response = service.call(keyless).now_or_never().expect("the service is ready").unwrap();
        assert_eq!(response.status(), 200);
    });
    assert_eq!(allocations.count_total, 0);

    let mut keyed = request();
    keyed.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    let allocations = allocation_counter::measure(|| drop(service.call(keyed)));
    assert!(allocations.count_total > 0, "the counter counts");
}
