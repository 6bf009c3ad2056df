//! The memory that a JSON fingerprint takes.

use axum::body::Body;
use axum::http::Request;
use hapax_http::json_cost;
use hapax_http::{FingerprintOf, IdempotencyConfig, KeyedRequest, MemoryBudget, OverloadLimits};

use crate::common::{app, memory, send};

/// A list of this many items.
fn list(item: impl Fn(usize) -> String, count: usize) -> String {
    let items: Vec<String> = (0..count).map(item).collect();
    format!("[{}]", items.join(","))
}

#[test]
fn fault_24_cost_is_an_upper_bound() {
    let members: Vec<String> = (0..20_000).map(|i| format!("\"{i}\":0")).collect();
    for body in [
        list(|_| "0".into(), (1 << 16) + 2),
        list(|_| "[]".into(), (1 << 15) + 2),
        list(|_| "{}".into(), (1 << 15) + 2),
        list(|_| "[[0],{\"a\":{}}]".into(), 10_000),
        list(|i| format!("\"{i}\""), (1 << 15) + 2),
        list(|_| "{\"a\":0,\"b\":\"\\\"[,\"}".into(), 10_000),
        format!("{{{}}}", members.join(",")),
        format!("\"{}\"", "x".repeat(1 << 20)),
    ] {
        let config = IdempotencyConfig::new().with_fingerprint(FingerprintOf::Json);
        let request = Request::post("/").header("idempotency-key", "k").body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let allocated = allocation_counter::measure(|| {
            KeyedRequest::parse(&config, &parts, body.as_bytes()).unwrap();
        });
        let (taken, cost) = (allocated.bytes_max as usize, json_cost(body.as_bytes()));
        assert!(taken <= cost, "{taken} > {cost}: {}…", &body[..20]);
    }
}

#[tokio::test]
async fn fault_24_json_fingerprint_stays_within_the_memory() {
    let budget = MemoryBudget::new(32 << 20);
    let limits = OverloadLimits::default().with_memory(budget.clone());
    let config = IdempotencyConfig::new().with_limits(limits);
    let json = config.clone().with_fingerprint(FingerprintOf::Json);
    let zeros = || {
        let request = Request::post("/").header("idempotency-key", "k");
        request.body(Body::from(list(|_| "0".into(), 100_000))).unwrap()
    };
    let (as_bytes, as_json) =
        (app(memory().0, config, || async { "ran" }), app(memory().0, json, || async { "ran" }));
    assert_eq!(send(&as_bytes, zeros()).await.body, "ran");
    let others = budget.reserve(16 << 20).unwrap();
    let refused = send(&as_json, zeros()).await;
    refused.assert_problem(503, "overloaded");
    assert_eq!(refused.header("retry-after"), Some("1"));
    drop(others);
    assert_eq!(send(&as_json, zeros()).await.body, "ran");
}

#[tokio::test]
async fn fault_24_json_beyond_the_whole_memory_is_too_large() {
    let body = list(|_| "0".into(), 100_000);
    // Enough for the fingerprint or for the body, and not for both.
    let memory_size = json_cost(body.as_bytes()) + body.len() - 1;
    let limits = OverloadLimits::default().with_memory(MemoryBudget::new(memory_size));
    let config = IdempotencyConfig::new().with_limits(limits).with_fingerprint(FingerprintOf::Json);
    let app = app(memory().0, config, || async { "ran" });
    let request = Request::post("/").header("idempotency-key", "k").body(Body::from(body));
    let refused = send(&app, request.unwrap()).await;
    refused.assert_problem(413, "payload-too-large");
    assert_eq!(refused.header("retry-after"), None);
}
