//! One execution and one response for each key, on every store.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::proxy_support::client::{Pooled, Reply, keyed, pooled, send};
use crate::proxy_support::{Proxy, Upstream, eventually, proxied, soon, until};
use crate::support::store::TestStore;
use axum::Router;
use axum::routing::post;
use hapax_testkit::{Postgres, Redis};
use hyper::{Request, StatusCode};
use tokio::sync::Notify;

const CLIENTS: usize = 50;

/// Fifty requests with one key over all of these proxies, with a slow handler.
async fn fifty_at_once(upstream: &Upstream, proxies: &[&Proxy]) {
    let client: Arc<Pooled> = Arc::new(pooled());
    let asked = (0..CLIENTS).map(|i| {
        let url = proxies[i % proxies.len()].url("/orders?ms=300");
        let client = client.clone();
        tokio::spawn(async move {
            let request = keyed(url, "one-key").body("cups=2".into()).unwrap();
            Reply::of(soon("an answer", client.request(request)).await.unwrap()).await.unwrap()
        })
    });
    let mut replies = Vec::new();
    for asked in asked.collect::<Vec<_>>() {
        replies.push(asked.await.unwrap());
    }
    assert_eq!(upstream.log.count(), 1, "one execution");
    let essences: HashSet<_> = replies.iter().map(Reply::essence).collect();
    assert_eq!(essences.len(), 1, "{CLIENTS} equal answers: {essences:?}");
    assert_eq!(replies[0].status, StatusCode::CREATED);
    assert_eq!(replies.iter().filter(|reply| reply.is_replay()).count(), CLIENTS - 1);
}

async fn fifty_at_once_on(store: &str, proxies: usize) {
    let upstream = Upstream::start().await;
    // Waits and leases that suffice on a slow machine.
    let start = |_| Proxy::start(&upstream.url(), store, &["--wait", "60s", "--lease", "10m"]);
    let proxies: Vec<Proxy> = (0..proxies).map(start).collect();
    fifty_at_once(&upstream, &proxies.iter().collect::<Vec<_>>()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_fifty_requests_run_once_on_memory() {
    fifty_at_once_on("memory:", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_fifty_requests_run_once_on_sqlite() {
    for proxies in [1, 2] {
        let store = TestStore::sqlite();
        fifty_at_once_on(&store.url(), proxies).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_fifty_requests_run_once_on_redis() {
    let redis = Redis::start();
    fifty_at_once_on(&redis.url(), 1).await;
    redis.cli(&["FLUSHALL"]);
    fifty_at_once_on(&redis.url(), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_fifty_requests_run_once_on_postgres() {
    let postgres = Postgres::start();
    fifty_at_once_on(&postgres.database("one"), 1).await;
    fifty_at_once_on(&postgres.database("two"), 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_restart_replays_on_every_durable_store() {
    for store in [TestStore::sqlite(), TestStore::redis(), TestStore::postgres()] {
        let upstream = Upstream::start().await;
        let first = Proxy::start(&upstream.url(), &store.url(), &[]);
        let one = first.order("k").await;
        drop(first);
        let second = Proxy::start(&upstream.url(), &store.url(), &[]);
        let two = second.order("k").await;
        assert!(two.is_replay());
        assert_eq!(one.essence(), two.essence());
        assert_eq!(upstream.log.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_key_belongs_to_caller_path_and_method() {
    let (upstream, proxy) = proxied(&["--methods", "POST,PUT"]).await;
    let ask = |method: &str, path: &str, who: &str| {
        let request = Request::builder().method(method).uri(proxy.url(path));
        send(request.header("idempotency-key", "k").header("authorization", who), "a")
    };
    let first = ask("POST", "/orders", "Bearer ada").await;
    let others = [
        ask("POST", "/orders", "Bearer bob").await,
        ask("POST", "/orders/1", "Bearer ada").await,
        ask("PUT", "/orders", "Bearer ada").await,
    ];
    for other in &others {
        assert!(!other.is_replay());
        assert_ne!(other.body, first.body);
    }
    assert!(ask("POST", "/orders", "Bearer ada").await.is_replay());
    assert_eq!(upstream.log.count(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_key_reused_is_422_also_while_pending() {
    let (upstream, proxy) = proxied(&[]).await;
    let slow = tokio::spawn(send(keyed(proxy.url("/orders?ms=500"), "k"), "a"));
    eventually("it runs", || upstream.log.count() == 1);
    let pending = send(keyed(proxy.url("/orders?ms=500"), "k"), "b").await;
    pending.is(422, "key-reused");
    assert_eq!(slow.await.unwrap().status, StatusCode::CREATED);
    let settled = proxy.order("k").await;
    assert_eq!(settled.status, StatusCode::UNPROCESSABLE_ENTITY, "another query");
    assert_eq!(upstream.log.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_duplicate_without_wait_gets_retry_after() {
    let gate = Arc::new(Notify::new());
    let opened = gate.clone();
    let gated = post(async move || {
        opened.notified().await;
        "done"
    });
    let upstream = Upstream::with(Router::new().route("/gated", gated)).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--wait", "0s"]);
    let ask = || send(keyed(proxy.url("/gated"), "k"), "a");
    let first = tokio::spawn(ask());
    let duplicate = until("it runs", async || {
        // The first of the two waits for the gate.
        let asked = tokio::time::timeout(Duration::from_millis(500), ask()).await;
        asked.ok().filter(|reply| !reply.problem().is_empty())
    });
    let duplicate = duplicate.await;
    duplicate.is(409, "in-progress");
    assert!(duplicate.header("retry-after").is_some());
    assert_eq!(duplicate.json()["retryable"], true);
    gate.notify_one();
    let _ = soon("the first one's answer", first).await.unwrap();
    let last = until("it is stored", async || {
        Some(ask().await).filter(|reply| reply.problem() != "in-progress")
    });
    assert!(last.await.is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_requires_keys_and_known_callers() {
    let (upstream, proxy) = proxied(&["--require-key"]).await;
    let keyless = send(Request::post(proxy.url("/orders")), "a").await;
    keyless.is(400, "key-missing");
    let read = send(Request::get(proxy.url("/orders")), "").await;
    assert_eq!(read.status, StatusCode::CREATED, "reading needs no key");
    let unknown = send(keyed(proxy.url("/orders"), "k").header("cookie", "sid=1"), "a").await;
    unknown.is(400, "scope-missing");
    assert_eq!(upstream.log.count(), 1);

    let cookies = Proxy::start(&upstream.url(), "memory:", &["--scope", "cookie:sid"]);
    let ask = |sid: &str| send(keyed(cookies.url("/o"), "k").header("cookie", sid), "a");
    assert!(!ask("sid=1").await.is_replay());
    assert!(!ask("sid=2").await.is_replay());
    assert!(ask("other=3; sid=1").await.is_replay());
}

/// A proxy on memory with this configuration file.
fn configured(text: &str) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hapax.toml");
    std::fs::write(&file, text).unwrap();
    Proxy::run(&["--config", file.to_str().unwrap(), "--store", "memory:"])
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_routes_have_their_own_policy_and_upstream() {
    let (general, special) = (Upstream::start().await, Upstream::start().await);
    let text = format!(
        r#"
        [proxy]
        upstream = "{}"
        [[proxy.route]]
        path = "/pay/*"
        upstream = "{}/base"
        methods = ["PUT"]
        require_key = true
        statuses = {{ 404 = "give-back", 500 = "keep" }}
        fingerprint = {{ only = ["/id"] }}
        [[proxy.route]]
        path = "/raw"
        methods = []
        "#,
        general.url(),
        special.url()
    );
    let proxy = configured(&text);
    let put = |path: &str, key: &str, body: &str| {
        let request = Request::put(proxy.url(path)).header("idempotency-key", key);
        send(request, body.to_owned())
    };
    // This route gives a 404 back, and keeps a 500.
    assert_eq!(put("/pay/a?status=404", "k1", "{}").await.status, StatusCode::NOT_FOUND);
    assert!(!put("/pay/a?status=404", "k1", "{}").await.is_replay());
    let failed = put("/pay/a?status=500", "k2", r#"{"id":1,"at":1}"#).await;
    let again = put("/pay/a?status=500", "k2", r#"{"id":1,"at":2}"#).await;
    assert!(again.is_replay());
    assert_eq!(failed.essence(), again.essence());
    let other = put("/pay/a?status=500", "k2", r#"{"id":2,"at":1}"#).await;
    assert_eq!(other.problem(), "key-reused");
    assert_eq!(send(Request::put(proxy.url("/pay/a")), "a").await.problem(), "key-missing");
    assert_eq!(special.log.count(), 3);
    assert_eq!(special.log.last().uri.path(), "/base/pay/a");
    // One path takes no keys; the others have the general policy.
    for _ in 0..2 {
        assert!(!send(keyed(proxy.url("/raw"), "k"), "a").await.is_replay());
    }
    assert_eq!(send(keyed(proxy.url("/pay"), "k"), "a").await.status, StatusCode::CREATED);
    assert!(send(keyed(proxy.url("/pay"), "k"), "a").await.is_replay());
    assert_eq!(general.log.count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_path_without_route_is_404() {
    let upstream = Upstream::start().await;
    let text = format!("[[proxy.route]]\npath = '/a'\nupstream = '{}'", upstream.url());
    let proxy = configured(&text);
    assert_eq!(send(Request::get(proxy.url("/a")), "").await.status, StatusCode::CREATED);
    assert_eq!(send(Request::get(proxy.url("/b")), "").await.problem(), "no-route");
}
