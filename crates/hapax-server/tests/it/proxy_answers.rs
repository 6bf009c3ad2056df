//! Responses through the proxy: replayed byte for byte, streamed, or replaced by a tombstone.

use std::sync::Arc;

use crate::proxy_support::client::{keyed, open, raw, send};
use crate::proxy_support::upstream::{Log, Seen};
use crate::proxy_support::{Proxy, Upstream, eventually, proxied, soon, until};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{any, post};
use http_body_util::{BodyExt, Channel};
use hyper::{Request, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

fn seen(key: &str) -> Seen {
    let request = Request::post("/").header("idempotency-key", key).body(()).unwrap();
    let (parts, ()) = request.into_parts();
    Seen { uri: parts.uri, headers: parts.headers, body: Bytes::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_replays_status_headers_and_bytes_without_cookies() {
    let rich = post(async |State(log): State<Log>| {
        log.note(seen("k"));
        let headers = [
            ("content-type", "application/octet-stream"),
            ("location", "/orders/17"),
            ("set-cookie", "session=secret"),
            ("x-twice", "one"),
            ("connection", "x-hop"),
            ("x-hop", "only for you"),
            ("keep-alive", "timeout=5"),
        ];
        let mut response =
            (StatusCode::CREATED, headers, &[0_u8, 255, 13, 10, 0][..]).into_response();
        response.headers_mut().append("x-twice", "two".parse().unwrap());
        response
    });
    let upstream = Upstream::with(Router::new().route("/rich", rich)).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &[]);
    let first = send(keyed(proxy.url("/rich"), "k"), "a").await;
    let again = send(keyed(proxy.url("/rich"), "k"), "a").await;
    assert_eq!(first.header("set-cookie"), Some("session=secret"));
    assert_eq!(first.header("idempotent-replayed"), None);
    assert_eq!(first.header("x-hop"), None, "it belonged to the upstream's connection");
    assert_eq!(again.header("set-cookie"), None);
    assert!(again.is_replay());
    assert!(again.header("idempotency-expires").unwrap().ends_with(" GMT"));
    assert_eq!(first.essence(), again.essence());
    assert_eq!(&again.body[..], [0, 255, 13, 10, 0]);
    assert_eq!(again.headers.get_all("x-twice").iter().count(), 2);
    assert_eq!(upstream.log.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_keeps_frees_or_marks_unknown_by_status() {
    let (upstream, proxy) = proxied(&[]).await;
    let replayed = [200, 204, 303, 400, 404, 409].map(|status| (status, "replayed"));
    let runs = [401, 403, 408, 425, 429, 500, 503].map(|status| (status, "runs"));
    let unknown = [502, 504].map(|status| (status, "unknown"));
    for (status, again) in replayed.into_iter().chain(runs).chain(unknown) {
        let url = proxy.url(&format!("/{status}?status={status}"));
        let before = upstream.log.count();
        let first = send(keyed(&url, "k"), "a").await;
        let second = send(keyed(&url, "k"), "a").await;
        assert_eq!(first.status.as_u16(), status);
        let (runs, attempt) = (upstream.log.count() - before, upstream.log.last());
        match again {
            "replayed" => {
                assert!(second.is_replay(), "{status}");
                assert_eq!(first.essence(), second.essence());
                assert_eq!(runs, 1);
            }
            "runs" => {
                assert_eq!((second.status.as_u16(), runs), (status, 2));
                assert_eq!(attempt.header("hapax-attempt"), Some("2"));
            }
            _ => assert_eq!((second.problem().as_str(), runs), ("outcome-unknown", 1), "{status}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_response_above_limit_leaves_a_tombstone() {
    let (upstream, proxy) = proxied(&["--limit", "64KiB"]).await;
    let url = proxy.url("/big?size=3000000");
    let first = send(keyed(&url, "k"), "a").await;
    assert_eq!((first.status.as_u16(), first.body.len()), (201, 3_000_000));
    let again = send(keyed(&url, "k"), "a").await;
    again.is(409, "response-not-kept");
    assert_eq!(again.json()["original_status"], 201);
    assert_eq!(upstream.log.count(), 1);

    let large = send(keyed(proxy.url("/x"), "k2"), vec![b'x'; 70_000]).await;
    large.is(413, "payload-too-large");
    assert_eq!(upstream.log.count(), 1);
}

/// An upstream whose response continues when the test releases it.
struct Dripping {
    upstream: Upstream,
    go_on: Arc<Notify>,
}

impl Dripping {
    async fn start(kind: &'static str) -> Self {
        let go_on = Arc::new(Notify::new());
        let gate = go_on.clone();
        let drip = any(async move |State(log): State<Log>| {
            log.note(seen("k"));
            let (mut sender, body) = Channel::<Bytes>::new(1);
            tokio::spawn(async move {
                sender.send_data("data: one\n\n".into()).await.unwrap();
                gate.notified().await;
                let _ = sender.send_data("data: two\n\n".into()).await;
            });
            ([("content-type", kind)], Body::new(body)).into_response()
        });
        let upstream = Upstream::with(Router::new().route("/drip", drip)).await;
        Self { upstream, go_on }
    }
}

async fn first_chunk_comes_before_the_last_is_made(kind: &'static str, request: &str, key: bool) {
    let dripping = Dripping::start(kind).await;
    let proxy = Proxy::start(&dripping.upstream.url(), "memory:", &[]);
    let mut head = Request::builder().method(request).uri(proxy.url("/drip"));
    if key {
        head = head.header("idempotency-key", "k");
    }
    let mut response = open(head, "").await.unwrap();
    assert_eq!(response.headers()["content-type"], kind);
    let first = soon("the first chunk", response.frame()).await.unwrap().unwrap();
    assert_eq!(first.into_data().unwrap(), "data: one\n\n");
    dripping.go_on.notify_one();
    let rest = soon("the rest", response.collect()).await.unwrap().to_bytes();
    assert_eq!(rest, "data: two\n\n");
    if key {
        let again = send(keyed(proxy.url("/drip"), "k"), "").await;
        match kind {
            "text/event-stream" => assert_eq!(again.problem(), "response-not-kept"),
            _ => {
                assert_eq!((again.is_replay(), again.text()), (true, "data: one\n\ndata: two\n\n"))
            }
        }
        assert_eq!(dripping.upstream.log.count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_streams_responses_with_and_without_a_key() {
    first_chunk_comes_before_the_last_is_made("text/plain", "GET", false).await;
    first_chunk_comes_before_the_last_is_made("text/plain", "POST", false).await;
    first_chunk_comes_before_the_last_is_made("text/plain", "POST", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_passes_event_streams_unbuffered() {
    first_chunk_comes_before_the_last_is_made("text/event-stream", "GET", false).await;
    first_chunk_comes_before_the_last_is_made("text/event-stream", "POST", true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_streams_uploads_without_a_key() {
    let got = Arc::new(Notify::new());
    let told = got.clone();
    let upload = post(async move |body: Body| {
        let mut body = body;
        let mut length = 0;
        while let Some(Ok(frame)) = body.frame().await {
            length += frame.data_ref().map_or(0, Bytes::len);
            told.notify_one();
        }
        length.to_string()
    });
    let upstream = Upstream::with(Router::new().route("/upload", upload)).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &[]);
    let mut stream = TcpStream::connect(&proxy.address).await.unwrap();
    let head = "POST /upload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n3\r\nabc\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    soon("the first part arrives before the last is sent", got.notified()).await;
    stream.write_all(b"2\r\nde\r\n0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    let read = tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer);
    soon("the answer", read).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains('5'), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_disconnected_client_gets_the_response_on_retry() {
    let (upstream, proxy) = proxied(&["--wait", "0s"]).await;
    let mut stream = TcpStream::connect(&proxy.address).await.unwrap();
    let head = "POST /orders?ms=300 HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 1\r\n\r\na";
    stream.write_all(head.as_bytes()).await.unwrap();
    eventually("it runs", || upstream.log.count() == 1);
    drop(stream);
    let answer = until("its answer is stored", async || {
        let reply = send(keyed(proxy.url("/orders?ms=300"), "k"), "a").await;
        (reply.problem() != "in-progress").then_some(reply)
    })
    .await;
    assert!(answer.is_replay());
    assert_eq!((answer.text(), upstream.log.count()), ("run 1", 1));
}

/// A response with many headers, or large ones: `?count=500&size=8`.
async fn many_headers(uri: hyper::Uri) -> axum::response::Response {
    let query = uri.query().unwrap_or_default();
    let number = |name: &str| -> usize {
        let mut found = query.split('&').filter_map(|pair| pair.strip_prefix(name));
        found.next().unwrap().parse().unwrap()
    };
    let mut response = "ok".into_response();
    for i in 0..number("count=") {
        let name = hyper::header::HeaderName::try_from(format!("x-{i}")).unwrap();
        response.headers_mut().insert(name, "y".repeat(number("size=")).parse().unwrap());
    }
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_36_many_response_headers_pass_and_replay() {
    let router = Router::new().route("/many", post(many_headers));
    let upstream = Upstream::with(router).await;
    for (flags, count, size) in [(&[][..], 500, 8), (&["--upstream-http2"], 30, 1000)] {
        let proxy = Proxy::start(&upstream.url(), "memory:", flags);
        let request = format!(
            "POST /many?count={count}&size={size} HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        );
        for replayed in [false, true] {
            let answer = raw(&proxy.address, request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            assert_eq!(answer.contains("idempotent-replayed: true"), replayed);
            assert_eq!(answer.lines().filter(|line| line.starts_with("x-")).count(), count);
        }
    }
}

/// Over HTTP/2 the upstream sends no reason at all; over HTTP/1.1 only a replay has none.
#[tokio::test(flavor = "multi_thread")]
async fn fault_36_unknown_status_has_no_made_up_reason() {
    let (_upstream, proxy) = proxied(&["--upstream-http2"]).await;
    let request = b"POST /x?status=299 HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\n\
        content-length: 0\r\nconnection: close\r\n\r\n";
    for replayed in [false, true] {
        let answer = raw(&proxy.address, request).await;
        assert!(answer.starts_with("HTTP/1.1 299 \r\n"), "{answer}");
        assert_eq!(answer.contains("idempotent-replayed: true"), replayed);
    }
}

const APP: &str = "https://app.example";
const OTHER_APP: &str = "https://two.example";

/// An upstream with CORS of its own, which the first request's origin decides, and a gate.
async fn cors_upstream(gate: Arc<Notify>) -> Upstream {
    let own = async |headers: hyper::HeaderMap| {
        let origin = headers.get("origin").cloned().unwrap();
        ([("access-control-allow-origin", origin)], "own").into_response()
    };
    let gated = async move |State(log): State<Log>| {
        log.note(seen("gated"));
        gate.notified().await;
        "ok"
    };
    Upstream::with(Router::new().route("/own", any(own)).route("/gated", post(gated))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_46_proxy_problems_carry_cors_headers() {
    let gate = Arc::new(Notify::new());
    let upstream = cors_upstream(gate.clone()).await;
    let flags = ["--wait", "0s", "--cors-origins", &format!("{APP}, {OTHER_APP}")];
    let proxy = Proxy::start(&upstream.url(), "memory:", &flags);
    let gone = Proxy::start("http://127.0.0.1:1", "memory:", &flags);
    let running = tokio::spawn(send(keyed(proxy.url("/gated"), "k"), "a"));
    eventually("it runs", || upstream.log.count() == 1);
    send(keyed(proxy.url("/orders"), "reused"), "a").await;
    let ask = async |url: String, key: &str, origin: Option<&str>| {
        let request = keyed(url, key);
        send(origin.into_iter().fold(request, |r, origin| r.header("origin", origin)), "b").await
    };
    for (url, key, code) in [
        (proxy.url("/orders"), "reused", "key-reused"),
        (proxy.url("/orders"), "", "invalid-key"),
        (gone.url("/orders"), "k", "upstream-unreachable"),
    ] {
        let told = ask(url.clone(), key, Some(APP)).await;
        assert_eq!(told.problem(), code);
        assert_eq!(told.header("access-control-allow-origin"), Some(APP), "{code}");
        assert_eq!(told.header("vary"), Some("origin"));
        assert_eq!(told.header("access-control-allow-credentials"), Some("true"));
        assert!(told.header("access-control-expose-headers").unwrap().contains("retry-after"));
        for stranger in [Some("https://evil.example"), Some("null"), None] {
            let told = ask(url.clone(), key, stranger).await;
            assert_eq!(told.header("access-control-allow-origin"), None, "{code} {stranger:?}");
        }
    }
    let same = keyed(proxy.url("/gated"), "k").header("origin", APP);
    let in_progress = send(same, "a").await;
    assert_eq!(in_progress.problem(), "in-progress");
    assert_eq!(in_progress.header("access-control-allow-origin"), Some(APP));
    gate.notify_one();
    assert_eq!(soon("the first", running).await.unwrap().text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_46_proxy_leaves_the_upstreams_cors_alone() {
    let upstream = cors_upstream(Arc::default()).await;
    let flags = ["--cors-origins", &format!("{APP}, {OTHER_APP}")];
    let proxy = Proxy::start(&upstream.url(), "memory:", &flags);
    let own = async |origin: &str| {
        send(keyed(proxy.url("/own"), "k").header("origin", origin), "a").await
    };
    let first = own(APP).await;
    assert_eq!(first.header("access-control-allow-origin"), Some(APP));
    assert_eq!(first.header("access-control-expose-headers"), None, "the upstream's own");
    let replay = own(OTHER_APP).await;
    assert!(replay.is_replay());
    assert_eq!(replay.header("access-control-allow-origin"), Some(OTHER_APP));
    let stranger = own("https://evil.example").await;
    assert_eq!(stranger.header("access-control-allow-origin"), Some(APP), "as it was stored");
    let plain = send(keyed(proxy.url("/orders"), "k").header("origin", APP), "a").await;
    assert_eq!(plain.header("access-control-allow-origin"), None, "the upstream has none");
    let preflight = Request::options(proxy.url("/own")).header("origin", APP);
    assert_eq!(send(preflight, "").await.text(), "own", "preflights are the upstream's");
}
