//! Requests that mean another caller, path, method or host to the service than to the proxy.

use std::sync::{Arc, Mutex};

use crate::proxy_support::client::{Pooled, Reply, keyed, raw, send};
use crate::proxy_support::{Proxy, Upstream, proxied, soon};
use axum::body::Body;
use axum::routing::post;
use http_body_util::BodyExt;
use hyper::header::HeaderMap;
use hyper::{Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// Sends a keyed order with these headers.
async fn order(proxy: &Proxy, key: &str, headers: &[(&str, &str)]) -> Reply {
    let mut request = keyed(proxy.url("/orders"), key);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    send(request, "a").await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_17_proxy_gives_no_answer_to_a_stranger() {
    let (upstream, proxy) = proxied(&[]).await;
    assert_eq!(order(&proxy, "a", &[("x-api-key", "alice")]).await.text(), "run 1");
    assert_eq!(order(&proxy, "a", &[]).await.text(), "run 2");
    assert!(order(&proxy, "a", &[("x-api-key", "alice")]).await.is_replay());
    let login = ("authorization", "Basic c2hvcDpzaG9w");
    for credentials in [("authorization", ""), login] {
        for session in ["sid=alice", "sid=mallory"] {
            let reply = order(&proxy, "b", &[credentials, ("cookie", session)]).await;
            reply.is(400, "scope-missing");
        }
    }
    assert_eq!(upstream.log.count(), 2);
    // A service that maps `_` to `-` must not see a caller whom the proxy did not see.
    order(&proxy, "c", &[("x_api_key", "alice"), ("x_forwarded_for", "6.6.6.6")]).await;
    assert_eq!(upstream.log.last().header("x_api_key"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_17_proxy_credential_headers_can_be_named() {
    let (_upstream, proxy) = proxied(&["--credential-headers", "X-Secret, X_Token"]).await;
    for name in ["x-secret", "x_token"] {
        assert!(!order(&proxy, name, &[(name, "alice")]).await.is_replay());
        assert!(!order(&proxy, name, &[(name, "bob")]).await.is_replay());
        assert!(order(&proxy, name, &[(name, "alice")]).await.is_replay());
    }
}

fn http2_client() -> Pooled {
    Client::builder(TokioExecutor::new()).http2_only(true).build_http()
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_cookie_crumbs_are_joined() {
    let (upstream, proxy) = proxied(&[]).await;
    let request = Request::get(proxy.url("/")).header("cookie", "a=1").header("cookie", "b=2");
    let asked = http2_client().request(request.body("".into()).unwrap());
    assert_eq!(soon("an answer", asked).await.unwrap().status(), StatusCode::CREATED);
    let seen = upstream.log.last();
    let lines: Vec<_> = seen.headers.get_all("cookie").iter().collect();
    assert_eq!(lines, ["a=1; b=2"]);
}

/// A proxy whose payments need a key, in front of this upstream.
fn payments_need_keys(upstream: &Upstream) -> Proxy {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hapax.toml");
    let text = format!(
        "[proxy]\nupstream = '{0}'\n[[proxy.route]]\npath = '/payments/*'\nrequire_key = true\n\
         [[proxy.route]]\npath = '/base/*'\nupstream = '{0}/base'",
        upstream.url()
    );
    std::fs::write(&file, text).unwrap();
    Proxy::run(&["--config", file.to_str().unwrap(), "--store", "memory:"])
}

/// The answer to a POST with exactly this target.
async fn post_raw(proxy: &Proxy, target: &str) -> String {
    let request = format!(
        "POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    raw(&proxy.address, request.as_bytes()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_routes_match_the_normalised_path() {
    let upstream = Upstream::start().await;
    let proxy = payments_need_keys(&upstream);
    for target in [
        "//payments/charge",
        "/%70ayments/charge",
        "/x/../payments/charge",
        "/x/%2e%2e/payments/charge",
        "/./payments/charge",
        "/payments%2Fcharge",
        "/payments%5ccharge",
        "/payments;a=1/charge",
        "/payments/../other",
        "/x/..;/payments/charge",
        "/../payments/charge",
        "/base/../../other",
        "/..%2fother",
    ] {
        let answer = post_raw(&proxy, target).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{target}: {answer}");
        assert!(answer.contains("invalid-request"), "{target}: {answer}");
    }
    // Another spelling of a path on the same route has that route's policy.
    let keyless = post_raw(&proxy, "/payments/%63harge").await;
    assert!(keyless.contains("key-missing"), "{keyless}");
    assert_eq!(upstream.log.count(), 0);
    for target in ["/files/a%2Fb", "/a//b", "/a/./b", "/a;b=c"] {
        let answer = post_raw(&proxy, target).await;
        assert!(answer.starts_with("HTTP/1.1 201"), "{target}: {answer}");
        assert_eq!(upstream.log.last().uri, target, "passed on unchanged");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_trailers_cannot_forge() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let collect = post(move |body: Body| async move {
        let whole = body.collect().await.unwrap();
        kept.lock().unwrap().push(whole.trailers().cloned().unwrap_or_default());
        "ok"
    });
    let upstream = Upstream::with(axum::Router::new().route("/t", collect)).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--upstream-http2"]);
    for key in ["", "idempotency-key: k\r\n"] {
        let request = format!(
            "POST /t HTTP/1.1\r\nhost: x\r\n{key}transfer-encoding: chunked\r\n\
             connection: close\r\n\r\n1\r\na\r\n0\r\nhapax-fence: 9\r\nidempotency-key: z\r\n\
             authorization: Bearer z\r\nx-forwarded-for: 6.6.6.6\r\nx-api-key: z\r\n\
             checksum: 42\r\n\r\n"
        );
        let answer = raw(&proxy.address, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let seen: Vec<HeaderMap> = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    for trailers in seen {
        let names: Vec<_> = trailers.keys().map(|name| name.as_str()).collect();
        assert_eq!(names, ["checksum"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_connection_cannot_strip_the_scope() {
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--scope", "header:X-User"]);
    let named = "X-User, X-Api-Key, X-HTTP-Method-Override, X-Hop";
    let headers = [
        ("connection", named),
        ("x-user", "alice"),
        ("x-api-key", "a"),
        ("x-http-method-override", "PUT"),
        ("x-hop", "1"),
    ];
    order(&proxy, "k", &headers).await;
    let seen = upstream.log.last();
    assert_eq!(seen.header("x-user"), Some("alice"));
    assert_eq!(seen.header("x-api-key"), Some("a"));
    assert_eq!(seen.header("x-http-method-override"), Some("PUT"));
    assert_eq!(seen.header("x-hop"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_22_userinfo_is_refused() {
    let (upstream, proxy) = proxied(&[]).await;
    let request = "GET http://u:p@shop.example/a HTTP/1.1\r\nhost: shop.example\r\n\
        connection: close\r\n\r\n";
    let answer = raw(&proxy.address, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(upstream.log.count(), 0);
}
