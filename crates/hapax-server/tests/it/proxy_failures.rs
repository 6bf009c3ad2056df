//! Failures of the upstream and the store, and the end of the proxy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::proxy_support::client::{Reply, keyed, pooled, send, try_send};
use crate::proxy_support::tls::Certificates;
use crate::proxy_support::{Proxy, Upstream, eventually, proxied, soon, until};
use crate::support::store::TestStore;
use crate::support::until_true;
use axum::Router;
use hapax_testkit::{Redis, free_port};
use hyper::{Request, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// How a broken upstream treats a request that it has read.
#[derive(Clone, Copy)]
enum Then {
    /// Closes the connection.
    Close,
    /// Responds, then closes.
    Say(&'static str),
    /// Responds with keep-alive, and closes a moment later.
    SayAndLeave(&'static str),
    /// Never responds.
    Hang,
}

/// An upstream that counts the requests it has read, and treats each as planned.
struct Broken {
    port: u16,
    requests: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
}

impl Broken {
    /// The n-th request is treated as planned by the n-th entry, later ones by the last.
    async fn start(script: &'static [Then]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let (counted, accepted) = (requests.clone(), connections.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(talk(stream, script, counted.clone()));
            }
        });
        Self { port, requests, connections }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// A broken upstream, and a proxy on memory in front of it.
async fn broken(script: &'static [Then], flags: &[&str]) -> (Broken, Proxy) {
    let upstream = Broken::start(script).await;
    let proxy = Proxy::start(&format!("http://127.0.0.1:{}", upstream.port), "memory:", flags);
    (upstream, proxy)
}

async fn talk(mut stream: TcpStream, script: &'static [Then], counted: Arc<AtomicUsize>) {
    let mut read = Vec::new();
    while stream.read_buf(&mut read).await.is_ok_and(|count| count > 0) {
        // Every request here has the body "a".
        if !read.ends_with(b"\r\n\r\na") {
            continue;
        }
        read.clear();
        let number = counted.fetch_add(1, Ordering::SeqCst);
        match script[number.min(script.len() - 1)] {
            Then::Close => return,
            Then::SayAndLeave(answer) => {
                let _ = stream.write_all(answer.as_bytes()).await;
                let moment = getrandom::u64().unwrap() % 1500;
                tokio::time::sleep(std::time::Duration::from_micros(moment)).await;
                return;
            }
            Then::Hang => std::future::pending().await,
            Then::Say(answer) => {
                let _ = stream.write_all(answer.as_bytes()).await;
                if !answer.contains("keep-alive") {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upstream_refusing_is_502_and_a_retry_runs() {
    let port = free_port();
    let proxy = Proxy::start(&format!("http://127.0.0.1:{port}"), "memory:", &[]);
    let refused = proxy.order("k").await;
    refused.is(502, "upstream-unreachable");
    assert_eq!(refused.json()["retryable"], true);
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    let upstream = Upstream::on(listener, Router::new()).await;
    let retry = proxy.order("k").await;
    assert_eq!((retry.status, retry.is_replay()), (StatusCode::CREATED, false));
    assert_eq!(upstream.log.last().header("hapax-attempt"), Some("2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upstream_name_unknown_is_502() {
    let proxy = Proxy::start("http://nobody.invalid:1", "memory:", &[]);
    for _ in 0..2 {
        let reply = proxy.order("k").await;
        assert_eq!(reply.problem(), "upstream-unreachable");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upstream_hanging_up_is_unknown() {
    let (upstream, proxy) = broken(&[Then::Close], &[]).await;
    let cut = proxy.order("k").await;
    cut.is(502, "upstream-failed");
    assert_eq!(cut.json()["retryable"], false);
    proxy.order("k").await.is(409, "outcome-unknown");
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_cut_body_is_502_and_never_stored() {
    static SHORT: &[Then] =
        &[Then::Say("HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\nonly this")];
    let (upstream, proxy) = broken(SHORT, &[]).await;
    let mut asked = 0;
    until("a clean 502", async || {
        asked += 1;
        let request = || keyed(proxy.url("/orders"), &format!("k{asked}"));
        let cut = try_send(request(), "a").await;
        send(request(), "a").await.is(409, "outcome-unknown");
        assert_eq!(upstream.requests(), asked);
        // On a busy machine the cut may come after the buffer timeout: the proxy has begun to stream
        // then, and cuts its own response as well.
        let Ok(cut) = cut else { return None };
        cut.is(502, "upstream-failed");
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_cut_stream_ends_with_error_and_is_never_stored() {
    static CHUNKED: &[Then] =
        &[Then::Say("HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\r\n4\r\nonly\r\n")];
    let (upstream, proxy) = broken(CHUNKED, &[]).await;
    let cut = try_send(keyed(proxy.url("/orders"), "k"), "a").await;
    // A clean 502, or a body without its end: never a complete response.
    assert!(cut.as_ref().is_ok_and(|r| r.status == 502) || cut.is_err(), "{cut:?}");
    proxy.order("k").await.is(409, "outcome-unknown");
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_06_proxy_cut_event_stream_is_unknown() {
    const CUT: &[Then] = &[Then::Say(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
         transfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n",
    )];
    let (upstream, proxy) = broken(CUT, &[]).await;
    assert!(try_send(keyed(proxy.url("/orders"), "k"), "a").await.is_err());
    proxy.order("k").await.is(409, "outcome-unknown");
    assert_eq!(upstream.requests(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_upstream_idle_is_504_and_unknown() {
    let (upstream, proxy) = broken(&[Then::Hang], &["--upstream-timeout", "1s"]).await;
    // On a stalled machine the timeout may pass before there is a connection.
    let late = until("it was sent", async || {
        Some(proxy.order("k").await).filter(|late| late.problem() != "upstream-unreachable")
    })
    .await;
    late.is(504, "upstream-timeout");
    assert_eq!(late.json()["retryable"], false);
    proxy.order("k").await.is(409, "outcome-unknown");
    // On a stalled machine the upstream may not have read the request yet.
    assert!(upstream.requests() <= 1);
}

/// The upstream accepts connections and never ends the TLS handshake.
#[tokio::test(flavor = "multi_thread")]
async fn fault_27_connect_hang_is_unreachable_not_unknown() {
    let certificates = Certificates::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("https://{}", listener.local_addr().unwrap());
    let authority = certificates.files.authority.to_str().unwrap();
    let flags =
        ["--upstream-ca", authority, "--upstream-timeout", "500ms", "--connect-timeout", "1m"];
    let proxy = Proxy::start(&upstream, "memory:", &flags);
    for _ in 0..2 {
        let hung = proxy.order("k").await;
        hung.is(502, "upstream-unreachable");
        assert_eq!(hung.json()["retryable"], true);
    }
    // Without a key the proxy does not watch whether the request was sent.
    let hung = send(Request::post(proxy.url("/orders")), "").await;
    hung.is(504, "upstream-timeout");
    assert_eq!(hung.json()["retryable"], false);
}

/// Sends a request that ends in the middle of its body, and returns the response.
async fn broken_upload(proxy: &Proxy, head: &str, then: AfterHalf) -> String {
    let mut stream = TcpStream::connect(&proxy.address).await.unwrap();
    let request = format!("POST /orders HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}");
    stream.write_all(request.as_bytes()).await.unwrap();
    match then {
        AfterHalf::Ends => stream.shutdown().await.unwrap(),
        AfterHalf::IsSilent => {}
    }
    let mut answer = String::new();
    let _ = soon("the response", stream.read_to_string(&mut answer)).await;
    answer
}

#[derive(Clone, Copy)]
enum AfterHalf {
    Ends,
    IsSilent,
}

/// The upstream reads the whole body before it answers, so that it never answers first.
#[tokio::test(flavor = "multi_thread")]
async fn fault_25_client_faults_are_not_the_upstreams() {
    const HALF: &str = "content-length: 9\r\n\r\nhalf";
    const MALFORMED: &str = "transfer-encoding: chunked\r\n\r\nzz\r\n";
    for upstream_http2 in [false, true] {
        let mut flags = vec!["--admin", "127.0.0.1:0", "--body-timeout", "1s"];
        flags.extend(upstream_http2.then_some("--upstream-http2"));
        let (_upstream, proxy) = proxied(&flags).await;
        for (head, then, status, code) in [
            (MALFORMED, AfterHalf::IsSilent, 400, "invalid-request"),
            (HALF, AfterHalf::Ends, 400, "invalid-request"),
            (HALF, AfterHalf::IsSilent, 408, "request-timeout"),
        ] {
            let answer = broken_upload(&proxy, head, then).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.contains(code) && answer.contains("\"retryable\":false"), "{answer}");
        }
        let keyed = format!("idempotency-key: k\r\n{HALF}");
        let answer = broken_upload(&proxy, &keyed, AfterHalf::IsSilent).await;
        assert!(
            answer.starts_with("HTTP/1.1 408 ") && answer.contains("request-timeout"),
            "{answer}"
        );
        assert!(answer.contains("\"retryable\":true"), "nothing ran: {answer}");
        let metrics = send(Request::get(proxy.admin_url("/metrics")), "").await;
        let mut failures =
            metrics.text().lines().filter(|l| l.starts_with("hapax_proxy_upstream_failures_total"));
        assert!(failures.all(|line| line.ends_with(" 0")), "{}", metrics.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_never_resends_on_a_closed_connection() {
    static SCRIPT: &[Then] = &[
        Then::Say("HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok"),
        Then::Close,
    ];
    let mut pooled = 0;
    for _ in 0..20 {
        let (upstream, proxy) = broken(SCRIPT, &["--upstream-idle", "1m"]).await;
        assert_eq!(send(keyed(proxy.url("/a"), "k1"), "a").await.text(), "ok");
        // The pooled connection reads this request and closes. On a busy machine it may not be back
        // in the pool yet: then a new connection does.
        let cut = send(keyed(proxy.url("/a"), "k2"), "a").await;
        assert_eq!(cut.problem(), "upstream-failed");
        assert_eq!(upstream.requests(), 2, "sent once");
        pooled += usize::from(upstream.connections.load(Ordering::SeqCst) == 1);
        send(keyed(proxy.url("/a"), "k2"), "a").await.is(409, "outcome-unknown");
    }
    assert!(pooled > 0, "on the pooled connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_closing_connection_runs_once_or_is_unknown() {
    static SCRIPT: &[Then] = &[Then::SayAndLeave(
        "HTTP/1.1 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    )];
    let (upstream, proxy) = broken(SCRIPT, &["--upstream-idle", "1m"]).await;
    let client = pooled();
    let (mut answered, mut lost) = (0, 0);
    for i in 0..200 {
        let before = upstream.requests();
        let request = keyed(proxy.url("/a"), &format!("k{i}")).body("a".into()).unwrap();
        let reply =
            Reply::of(soon("an answer", client.request(request)).await.unwrap()).await.unwrap();
        let read = upstream.requests() - before;
        match reply.status.as_u16() {
            200 => answered += usize::from(read == 1),
            502 => lost += usize::from(read <= 1),
            other => panic!("{other}"),
        }
    }
    assert_eq!(answered + lost, 200, "no request was read twice");
    assert!(answered > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_rerun_runs_again_with_the_attempt() {
    static SCRIPT: &[Then] =
        &[Then::Close, Then::Say("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")];
    let flags = ["--on-unknown", "rerun"];
    let (upstream, proxy) = broken(SCRIPT, &flags).await;
    let cut = proxy.order("k").await;
    assert_eq!(cut.problem(), "upstream-failed");
    assert_eq!(cut.json()["retryable"], true);
    let rerun = until("its lease is over", async || {
        Some(proxy.order("k").await).filter(|reply| reply.problem() != "in-progress")
    })
    .await;
    assert_eq!((rerun.text(), upstream.requests()), ("ok", 2));

    let (counting, proxy) = proxied(&flags).await;
    for _ in 0..2 {
        send(keyed(proxy.url("/orders?status=504"), "k"), "a").await;
    }
    let [first, second] = &counting.log.all()[..] else { panic!("two attempts") };
    assert_eq!(first.header("hapax-attempt"), Some("1"));
    assert_eq!(second.header("hapax-attempt"), Some("2"));
    assert_eq!(second.header("idempotency-key"), Some("k"));
    let fence = |seen: &crate::proxy_support::upstream::Seen| -> u64 {
        seen.header("hapax-fence").unwrap().parse().unwrap()
    };
    assert!(fence(second) > fence(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_store_coming_late_is_examined() {
    let redis = Redis::with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    redis.kill();
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url(), &redis.url(), &["--admin", "127.0.0.1:0"]);
    redis.restart();
    let readiness =
        async || send(Request::get(proxy.admin_url("/readyz")), "").await.text().to_owned();
    until_true("it was examined", async || readiness().await.contains("noeviction")).await;
    let unfit = proxy.order("k").await;
    unfit.is(503, "store-unavailable");
    assert_eq!(upstream.log.count(), 0);
    redis.cli(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    until_true("it is ready", async || readiness().await.contains("true")).await;
    assert_eq!(proxy.order("k").await.status, StatusCode::CREATED);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_store_down_is_503_and_runs_nothing() {
    let (redis, upstream) = (Redis::start(), Upstream::start().await);
    let flags = ["--store-timeout", "2s", "--admin", "127.0.0.1:0"];
    let proxy = Proxy::start(&upstream.url(), &redis.url(), &flags);
    // Two seconds may be too short on a busy machine, so ask again.
    let created = async |what: &str, key: &str| {
        until_true(what, async || proxy.order(key).await.status == StatusCode::CREATED).await;
    };
    created("the store is there", "k").await;
    redis.stop();
    let down = proxy.order("k2").await;
    down.is(503, "store-unavailable");
    assert_eq!(down.json()["retryable"], true);
    let keyless = send(Request::post(proxy.url("/orders")), "a").await;
    assert_eq!(keyless.status, StatusCode::CREATED, "without a key nothing is asked of the store");
    assert_eq!(upstream.log.count(), 2);
    until_true("/readyz is red", async || {
        send(Request::get(proxy.admin_url("/readyz")), "").await.status == 503
    })
    .await;
    redis.cont();
    // The store has received the claim above, which is in progress until the proxy has undone it.
    created("the store is back", "k2").await;
    assert_eq!(upstream.log.count(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_open_policy_marks_unprotected_responses() {
    let (redis, upstream) = (Redis::start(), Upstream::start().await);
    let flags = ["--on-store-error", "open", "--store-timeout", "2s", "--admin", "127.0.0.1:0"];
    let proxy = Proxy::start(&upstream.url(), &redis.url(), &flags);
    redis.kill();
    for _ in 0..2 {
        let reply = proxy.order("k").await;
        assert_eq!(reply.status, StatusCode::CREATED);
        assert_eq!(reply.header("hapax-unprotected"), Some("store-unavailable"));
    }
    assert_eq!(upstream.log.count(), 2);
    let metrics = send(Request::get(proxy.admin_url("/metrics")), "").await;
    let line = "hapax_idempotency_total{event=\"unprotected\"} 2";
    assert!(metrics.text().contains(line), "{}", metrics.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_starts_without_its_store() {
    let redis = Redis::start();
    redis.kill();
    let upstream = Upstream::start().await;
    let proxy = Proxy::start(&upstream.url(), &redis.url(), &["--store-timeout", "2s"]);
    assert_eq!(proxy.order("k").await.problem(), "store-unavailable");
    redis.restart();
    until_true("the store is there", async || proxy.order("k").await.status == StatusCode::CREATED)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_sigterm_finishes_and_stores_all_runs() {
    let store = TestStore::sqlite();
    let upstream = Upstream::start().await;
    let mut proxy = Proxy::start(&upstream.url(), &store.url(), &[]);
    let url = |path: &str| proxy.url(path);
    let stays = tokio::spawn(send(keyed(url("/stays?ms=700"), "k"), "a"));
    let mut leaves = TcpStream::connect(&proxy.address).await.unwrap();
    let head = "POST /leaves?ms=700 HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 1\r\n\r\na";
    leaves.write_all(head.as_bytes()).await.unwrap();
    eventually("both run", || upstream.log.count() == 2);
    drop(leaves);
    proxy.terminate();
    let answer = soon("the answer", stays).await.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED);
    proxy.ended();
    let next = Proxy::start(&upstream.url(), &store.url(), &["--wait", "0s"]);
    for path in ["/stays?ms=700", "/leaves?ms=700"] {
        assert!(send(keyed(next.url(path), "k"), "a").await.is_replay(), "{path}");
    }
    assert_eq!(upstream.log.count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_shutdown_has_a_timeout() {
    let (upstream, mut proxy) = broken(&[Then::Hang], &["--shutdown-timeout", "200ms"]).await;
    let request = keyed(proxy.url("/orders"), "k").body("a".into()).unwrap();
    let waiting = tokio::spawn(pooled().request(request));
    eventually("it runs", || upstream.requests() == 1);
    proxy.terminate();
    proxy.ended();
    assert!(soon("no answer", waiting).await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_logs_nothing_personal() {
    let (_upstream, proxy) = proxied(&["--log-level", "trace"]).await;
    let request = keyed(proxy.url("/users/ada-lovelace?token=s3cret"), "key-of-ada");
    send(request.header("authorization", "Bearer t0ken"), "b0dy").await;
    let gone = Proxy::start("http://127.0.0.1:1", "memory:", &["--log-level", "trace"]);
    send(keyed(gone.url("/users/ada-lovelace"), "key-of-ada"), "b0dy").await;
    for proxy in [proxy, gone] {
        eventually("the request is logged", || proxy.log().contains(" request method="));
        let log = proxy.log();
        for secret in ["ada", "s3cret", "t0ken", "b0dy"] {
            assert!(!log.contains(secret), "{secret} in {log}");
        }
    }
}

#[test]
fn proxy_wrong_setting_ends_with_a_helpful_line() {
    for (flags, said) in [
        (&["--upstream", "localhost:3000"][..], "http://127.0.0.1:3000"),
        (&[], "--upstream says where requests go"),
        (&["--upstream", "http://a", "--store", "mongodb://x"], "sqlite:"),
        (&["--upstream", "http://a", "--wait", "soon"], "--wait"),
    ] {
        let output = crate::proxy_support::process::command(flags).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success());
        assert!(message.contains(said), "{message}");
    }
}
