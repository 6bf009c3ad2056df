//! Which requests pass unchanged, which are rewritten, and which are refused.

use std::sync::{Arc, Mutex};

use crate::proxy_support::client::{Pooled, Reply, keyed, raw, send};
use crate::proxy_support::tls::Certificates;
use crate::proxy_support::{Proxy, Upstream, proxied, soon, until};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode, Version};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[tokio::test(flavor = "multi_thread")]
async fn proxy_forwards_origin_and_no_connection_headers() {
    let (upstream, proxy) = proxied(&[]).await;
    let request = keyed(proxy.url("/orders?a=1"), "k")
        .header("host", "shop.example")
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("keep-alive", "timeout=9")
        .header("te", "trailers")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-forwarded-host", "evil.example")
        .header("forwarded", "for=6.6.6.6")
        .header("hapax-attempt", "99")
        .header("hapax_attempt", "99")
        .header("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    assert_eq!(send(request, "a").await.status, StatusCode::CREATED);
    let seen = upstream.log.last();
    assert_eq!(seen.uri, "/orders?a=1");
    assert_eq!(seen.header("host"), Some("shop.example"));
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;host=\"shop.example\";proto=http"));
    assert_eq!(seen.header("hapax-attempt"), Some("1"));
    assert!(seen.header("traceparent").unwrap().starts_with("00-0af76"));
    assert_eq!(seen.header("idempotency-key"), Some("k"));
    for gone in ["connection", "x-hop", "keep-alive", "te", "hapax_attempt"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }

    let flags = ["--trust-forwarded", "--host", "upstream"];
    let proxy = Proxy::start(&upstream.url(), "memory:", &flags);
    let request = keyed(proxy.url("/"), "k").header("x-forwarded-for", "6.6.6.6");
    send(request.header("host", "shop.example"), "a").await;
    let seen = upstream.log.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("6.6.6.6, 127.0.0.1"));
    assert_eq!(seen.header("host").unwrap(), format!("127.0.0.1:{}", upstream.port));
    assert_eq!(seen.header("x-forwarded-host"), Some("shop.example"));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_listener_has_no_paths_of_its_own() {
    let (upstream, proxy) = proxied(&["--admin", "127.0.0.1:0"]).await;
    for path in ["/", "/healthz", "/readyz", "/metrics", "/v1/locks/a"] {
        let reply = send(Request::get(proxy.url(path)), "").await;
        assert_eq!(reply.status, StatusCode::CREATED);
        assert_eq!(upstream.log.last().uri.path(), path);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let reply = send(Request::get(proxy.admin_url(path)), "").await;
        assert_eq!(reply.status, StatusCode::OK);
    }
    assert_eq!(upstream.log.count(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_passes_large_bodies_without_a_key() {
    let (upstream, proxy) = proxied(&["--limit", "1KiB"]).await;
    let reply = send(Request::get(proxy.url("/?size=9000000")), vec![b'y'; 1_500_000]).await;
    assert_eq!(reply.body.len(), 9_000_000);
    assert_eq!(upstream.log.last().body.len(), 1_500_000);
    let head = send(Request::head(proxy.url("/?size=5000")), "").await;
    assert_eq!((head.header("content-length"), head.body.len()), (Some("5000"), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_ignores_the_authority_of_an_absolute_uri() {
    let (upstream, other) = (Upstream::start().await, Upstream::start().await);
    let proxy = Proxy::start(&upstream.url(), "memory:", &[]);
    let asked = format!(
        "POST {}/orders?a=1 HTTP/1.1\r\nhost: ignored.example\r\nidempotency-key: k\r\n\
         content-length: 1\r\nconnection: close\r\n\r\na",
        other.url()
    );
    let answer = raw(&proxy.address, asked.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    assert_eq!((upstream.log.count(), other.log.count()), (1, 0));
    let seen = upstream.log.last();
    assert_eq!(seen.uri, "/orders?a=1");
    assert_eq!(seen.header("host").unwrap(), format!("127.0.0.1:{}", other.port));
    // The same path in origin form is the same request.
    let again = send(keyed(proxy.url("/orders?a=1"), "k"), "a").await;
    assert!(again.is_replay());
}

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// An upstream that records the bytes that it receives.
async fn bytes_seen_by_upstream(sent: &[u8]) -> (String, String) {
    let (listener, port) = listen().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let kept = kept.clone();
            tokio::spawn(async move {
                let mut chunk = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut chunk).await {
                    let whole = {
                        let mut kept = kept.lock().unwrap();
                        kept.extend_from_slice(&chunk[..count]);
                        kept.clone()
                    };
                    let text = String::from_utf8_lossy(&whole);
                    if text.ends_with("0\r\n\r\n") || !text.contains("transfer-encoding") {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                        let _ = stream.write_all(answer).await;
                    }
                }
            });
        }
    });
    let proxy = Proxy::start(&format!("http://127.0.0.1:{port}"), "memory:", &[]);
    let answer = raw(&proxy.address, sent).await;
    let seen = String::from_utf8_lossy(&seen.lock().unwrap()).into_owned();
    (answer, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_drops_length_beside_transfer_encoding() {
    let smuggled =
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
        1\r\nz\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
    let (answer, seen) = bytes_seen_by_upstream(smuggled).await;
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "the connection is closed after: {answer}");
    assert!(!seen.contains("smuggled"), "{seen}");
    let head = seen.to_lowercase();
    assert!(!(head.contains("content-length") && head.contains("transfer-encoding")), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_refuses_ambiguous_requests() {
    for request in [
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1, 2\r\n\r\nab",
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: +1\r\n\r\na",
        "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length : 1\r\n\r\na",
        "POST /a HTTP/1.1\r\nhost: x\r\nx-folded: one\r\n two\r\ncontent-length: 1\r\n\r\na",
        "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\na",
        "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        "POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "POST /a HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: x\r\nhost: y\r\nconnection: close\r\n\r\n",
        "GET /a HTTP/1.1\r\nconnection: close\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: x y\r\nconnection: close\r\n\r\n",
        "GET /a HTTP/1.1\r\nhost: a@b\r\nconnection: close\r\n\r\n",
        "GET /a\x01 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ] {
        let (answer, seen) = bytes_seen_by_upstream(request.as_bytes()).await;
        let refused = ["HTTP/1.1 400", "HTTP/1.0 400"].iter().any(|head| answer.starts_with(head));
        assert!(refused, "{request}\n{answer}");
        assert_eq!(seen, "", "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_refuses_repeated_keys_and_connect() {
    let (upstream, proxy) = proxied(&[]).await;
    let doubled = keyed(proxy.url("/a"), "k").header("idempotency-key", "k");
    assert_eq!(send(doubled, "a").await.problem(), "invalid-key");
    let connect =
        "CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    let answer = raw(&proxy.address, connect.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    assert_eq!(upstream.log.count(), 0);
}

/// RFC 6455's own example of a handshake.
const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: s3pPLMBmTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

async fn head_of(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(soon("a head", stream.read_u8()).await?);
    }
    Ok(String::from_utf8(head).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_passes_websockets() {
    let (listener, port) = listen().await;
    let upstream = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let head = head_of(&mut stream).await.unwrap().to_lowercase();
        stream.write_all(ACCEPTED.as_bytes()).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
        head
    });
    // The idle timeout of connections does not apply to tunnels.
    let flags = ["--idle-timeout", "300ms", "--header-timeout", "1s"];
    let proxy = Proxy::start(&format!("http://127.0.0.1:{port}"), "memory:", &flags);
    let (mut client, head) = until("the handshake", async || {
        let mut client = TcpStream::connect(&proxy.address).await.unwrap();
        client.write_all(HANDSHAKE.as_bytes()).await.ok()?;
        // Cut off if a busy machine was too slow to send it.
        let head = head_of(&mut client).await.ok()?.to_lowercase();
        Some((client, head))
    })
    .await;
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("s3pplmbmtxaq9kygzzhzrbk+xoo="), "{head}");
    // A masked text frame "Hello" (RFC 6455, 5.7), several times.
    let hello = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    for _ in 0..3 {
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        client.write_all(&hello).await.unwrap();
        let mut echo = [0; 11];
        soon("an echo", client.read_exact(&mut echo)).await.unwrap();
        assert_eq!(echo, hello);
    }
    drop(client);
    let seen = soon("the tunnel closes", upstream).await.unwrap();
    assert!(seen.contains("upgrade: websocket") && seen.contains("sec-websocket-key"), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_refuses_upgrade_to_http2() {
    let upgrade = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: Upgrade, HTTP2-Settings, close\r\n\
        upgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n\r\n";
    let (answer, seen) = bytes_seen_by_upstream(upgrade).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let seen = seen.to_lowercase();
    assert!(seen.starts_with("get /a"), "{seen}");
    assert!(!seen.contains("h2c") && !seen.contains("http2-settings"), "{seen}");
}

fn http2_client() -> Pooled {
    Client::builder(TokioExecutor::new()).http2_only(true).build_http()
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_speaks_http2_on_both_sides() {
    let (upstream, proxy) = proxied(&["--upstream-http2", "--wait", "60s"]).await;
    let client = http2_client();
    let ask = |key: &str| {
        let request = keyed(proxy.url("/orders?ms=100"), key).body("a".into()).unwrap();
        client.request(request)
    };
    let all = (0..20).map(|i| ask(if i % 2 == 0 { "even" } else { "odd" }));
    let mut bodies = std::collections::HashSet::new();
    for asked in all.map(tokio::spawn).collect::<Vec<_>>() {
        let response = soon("an answer", asked).await.unwrap().unwrap();
        assert_eq!(response.version(), Version::HTTP_2);
        bodies.insert(Reply::of(response).await.unwrap().body);
    }
    assert_eq!((bodies.len(), upstream.log.count()), (2, 2));
    let seen = upstream.log.last();
    assert_eq!(seen.uri.authority().unwrap().as_str(), format!("127.0.0.1:{}", upstream.port));
    assert_eq!(seen.header("x-forwarded-host"), Some(proxy.address.as_str()));
    // HTTP/1.1 clients of the same proxy get the same responses.
    assert!(send(keyed(proxy.url("/orders?ms=100"), "even"), "a").await.is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_passes_trailers_over_http2() {
    use axum::response::IntoResponse;
    let grpc = axum::routing::post(async |body: axum::body::Body| {
        let _ = body.collect().await;
        let status = ("grpc-status".parse().unwrap(), "0".parse().unwrap());
        let trailers = std::future::ready(Some(Ok([status].into_iter().collect())));
        let body = Full::new(Bytes::from_static(b"message")).with_trailers(trailers);
        ([("content-type", "application/grpc")], axum::body::Body::new(body)).into_response()
    });
    let upstream = Upstream::with(axum::Router::new().route("/grpc", grpc)).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--upstream-http2"]);
    let client = http2_client();
    let request = Request::post(proxy.url("/grpc")).header("te", "trailers").body("a".into());
    let response = soon("an answer", client.request(request.unwrap())).await.unwrap();
    let whole = response.into_body().collect().await.unwrap();
    assert_eq!(whole.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(whole.to_bytes(), "message");
}

/// An upstream that speaks TLS and responds with the negotiated protocol.
async fn tls_upstream(certificates: &Certificates, alpn: &[&str]) -> u16 {
    let (listener, port) = listen().await;
    let acceptor = tokio_rustls::TlsAcceptor::from(certificates.server(alpn));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = hyper::service::service_fn(async |request: Request<_>| {
                let _: &hyper::body::Incoming = request.body();
                let proto = request.headers()["x-forwarded-proto"].to_str().unwrap();
                let text = format!("{:?} {proto}", request.version());
                let response = hyper::Response::new(Full::new(Bytes::from(text)));
                Ok::<_, std::convert::Infallible>(response)
            });
            tokio::spawn(async move {
                let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_speaks_tls_on_both_sides() {
    let certificates = Certificates::new();
    let files = &certificates.files;
    let [cert, key, ca] = [&files.certificate, &files.key, &files.authority];
    let [cert, key, ca] = [cert, key, ca].map(|path| path.to_str().unwrap());
    for http2 in [false, true] {
        let port = tls_upstream(&certificates, &["h2", "http/1.1"]).await;
        let mut flags = vec!["--tls-cert", cert, "--tls-key", key, "--upstream-ca", ca];
        flags.extend(http2.then_some("--upstream-http2"));
        let proxy = Proxy::start(&format!("https://127.0.0.1:{port}"), "memory:", &flags);
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(certificates.client())
            .https_only()
            .enable_all_versions()
            .build();
        let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
        for replayed in [false, true] {
            let request = keyed(format!("https://{}/", proxy.address), "k").body("a".into());
            let response = soon("an answer", client.request(request.unwrap())).await.unwrap();
            assert_eq!(response.version(), Version::HTTP_2, "by ALPN");
            let reply = Reply::of(response).await.unwrap();
            let version = if http2 { "HTTP/2.0" } else { "HTTP/1.1" };
            assert_eq!(reply.text(), format!("{version} https"));
            assert_eq!(reply.is_replay(), replayed);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_refuses_an_untrusted_upstream_certificate() {
    let (certificates, strangers) = (Certificates::new(), Certificates::new());
    let port = tls_upstream(&strangers, &[]).await;
    let flags = ["--upstream-ca", certificates.files.authority.to_str().unwrap()];
    let proxy = Proxy::start(&format!("https://127.0.0.1:{port}"), "memory:", &flags);
    let reply = send(keyed(proxy.url("/"), "k"), "a").await;
    assert_eq!(reply.problem(), "upstream-unreachable");
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_cuts_off_unfinished_headers() {
    let (upstream, proxy) = proxied(&["--header-timeout", "1s", "--idle-timeout", "1s"]).await;
    for sent in ["", "P", "POST / HTTP/1.1\r\nhost: x\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        raw(&proxy.address, sent.as_bytes()).await;
    }
    // A body that stops in the middle is a problem document. Its headers may come slowly.
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--body-timeout", "1s"]);
    let half = "POST / HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 9\r\n\r\nhalf";
    let answer = raw(&proxy.address, half.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400") || answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert_eq!(upstream.log.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_36_malformed_http_gets_a_problem_document() {
    let (upstream, proxy) = proxied(&["--header-timeout", "1s"]).await;
    let many: String = (0..150).map(|i| format!("X-{i}: y\r\n")).collect();
    let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n");
    for (bytes, status, code) in [
        (&b"GET /a HTTP/1.1\r\nno colon here\r\n\r\n"[..], 400, "invalid-request"),
        (b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "invalid-request"),
        (b"GET /\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "invalid-request"),
        (b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", 400, "invalid-request"),
        (b"G@T / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "invalid-request"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x00B: c\r\n\r\n", 400, "invalid-request"),
        (many.as_bytes(), 431, "headers-too-large"),
        (b"GET / HTTP/1.1\r\nHost: loc", 408, "request-timeout"),
    ] {
        let answer = raw(&proxy.address, bytes).await;
        let what = String::from_utf8_lossy(bytes);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
        assert!(answer.contains("content-type: application/problem+json"), "{what}: {answer}");
        assert!(answer.contains(&format!("problems/{code}\"")), "{what}: {answer}");
    }
    assert_eq!(upstream.log.count(), 0);
}

/// An upstream's own response may look like one that the HTTP library generates.
#[tokio::test(flavor = "multi_thread")]
async fn fault_36_upstream_responses_are_never_replaced() {
    use axum::routing::get;
    const REFUSAL: &str =
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let router = axum::Router::new()
        .route("/empty", get(async || StatusCode::BAD_REQUEST))
        .route("/text", get(async || REFUSAL));
    let upstream = Upstream::with(router).await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &[]);
    let ask = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        raw(&proxy.address, request.as_bytes()).await
    };
    let empty = ask("/empty").await;
    assert!(empty.starts_with("HTTP/1.1 400 ") && empty.ends_with("\r\n\r\n"), "{empty}");
    assert!(!empty.contains("problem"), "{empty}");
    let text = ask("/text").await;
    assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with(REFUSAL), "{text}");
}
