//! Items that a handler enqueues belong to the trace of its request.

use std::sync::{Arc, Mutex};

use crate::common::{app, memory, send, without_wait};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hapax_conformance::{Fault, FaultyStore};
use hapax_core::Tenant;
use hapax_core::lock::OnStoreError;
use hapax_core::queue::QueueItem;
use hapax_http::IdempotencyConfig;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

type Enqueued = Arc<Mutex<Vec<QueueItem>>>;

/// Enqueues an item after an await.
fn shop(store: Arc<dyn hapax_core::Claims>, config: IdempotencyConfig) -> (Router, Enqueued) {
    let enqueued = Enqueued::default();
    let items = enqueued.clone();
    let shop = app(store, config, || async move {
        tokio::task::yield_now().await;
        items.lock().unwrap().push(QueueItem::new(&Tenant::default(), "orders", "{}"));
        "ordered"
    });
    (shop, enqueued)
}

fn order(key: Option<&str>, traces: &[&str]) -> Request<Body> {
    let mut request = Request::post("/orders");
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    for trace in traces {
        request = request.header("traceparent", *trace);
    }
    request.body(Body::empty()).unwrap()
}

fn last(enqueued: &Enqueued) -> Option<String> {
    enqueued.lock().unwrap().pop().expect("it ran").headers.remove("traceparent")
}

#[tokio::test]
async fn trace_reaches_items_with_and_without_a_key() {
    let (app, enqueued) = shop(memory().0, without_wait());
    for key in [Some("a"), None] {
        assert_eq!(send(&app, order(key, &[TRACE])).await.status, 200);
        assert_eq!(last(&enqueued).as_deref(), Some(TRACE));
    }
}

#[tokio::test]
async fn trace_reaches_items_without_a_store() {
    let store = FaultyStore::new(memory().0);
    let config = without_wait().with_on_store_error(OnStoreError::Open);
    let (app, enqueued) = shop(Arc::new(store.clone()), config);
    store.always(Some(Fault::LostQuestion));
    let answer = send(&app, order(Some("a"), &[TRACE])).await;
    assert!(answer.header("hapax-unprotected").is_some());
    assert_eq!(last(&enqueued).as_deref(), Some(TRACE));
}

#[tokio::test]
async fn trace_invalid_or_repeated_is_ignored() {
    let (app, enqueued) = shop(memory().0, without_wait());
    for (n, traces) in [&[][..], &["00-1-2-01"], &["a b"], &[TRACE, TRACE]].iter().enumerate() {
        for key in [Some(format!("k{n}")), None] {
            assert_eq!(send(&app, order(key.as_deref(), traces)).await.status, 200);
            assert_eq!(last(&enqueued), None, "{traces:?}");
        }
    }
}
