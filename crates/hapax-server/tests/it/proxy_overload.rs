//! How much memory, connections and work a client can take.

use std::sync::Arc;
use std::time::Duration;

use crate::proxy_support::client::{Reply, keyed, send};
use crate::proxy_support::upstream::{Log, Seen};
use crate::proxy_support::{Proxy, Upstream, proxied, soon, until};
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use bytes::Bytes;
use http_body_util::Channel;
use hyper::header::HeaderMap;
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// The head of a keyed upload of this many bytes.
fn upload_head(key: &str, length: usize) -> String {
    format!(
        "POST /orders HTTP/1.1\r\nhost: x\r\nidempotency-key: {key}\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_18_unfinished_uploads_are_bounded() {
    let flags = ["--buffer-memory", "4MiB", "--body-timeout", "10m"];
    let (upstream, proxy) = proxied(&flags).await;
    let mut uploads = JoinSet::new();
    for i in 0..12 {
        let mut stream = TcpStream::connect(&proxy.address).await.unwrap();
        uploads.spawn(async move {
            let mut sent = upload_head(&format!("k{i}"), 1 << 20).into_bytes();
            sent.resize(sent.len() + (900 << 10), b'x');
            // A refused upload may be cut before all of it was sent.
            let _ = stream.write_all(&sent).await;
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer).await;
            answer
        });
    }
    for _ in 0..8 {
        let answer = soon("a refusal", uploads.join_next()).await.unwrap().unwrap();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.is_empty() || answer.contains("/overloaded\""), "{answer}");
        assert!(answer.is_empty() || answer.contains("retry-after: 1"), "{answer}");
    }
    uploads.shutdown().await;
    // The memory of the others is free again.
    until("there is room", async || {
        let order = send(keyed(proxy.url("/orders"), "new"), vec![b'x'; 1 << 20]).await;
        (order.status == StatusCode::CREATED).then_some(())
    })
    .await;
    assert_eq!(upstream.log.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_18_unfinished_http2_uploads_are_bounded() {
    let flags = ["--buffer-memory", "4MiB", "--body-timeout", "10m"];
    let (upstream, proxy) = proxied(&flags).await;
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let (mut answers, mut senders) = (JoinSet::new(), Vec::new());
    for i in 0..12 {
        let (mut sender, body) = Channel::<Bytes>::new(1);
        let request = keyed(proxy.url("/orders"), &format!("k{i}")).body(body).unwrap();
        let asked = client.request(request);
        answers.spawn(async move { Reply::of(asked.await.unwrap()).await.unwrap() });
        senders.push(tokio::spawn(async move {
            for _ in 0..14 {
                let _ = sender.send_data(Bytes::from(vec![b'x'; 64 << 10])).await;
            }
            std::future::pending::<()>().await;
            drop(sender);
        }));
    }
    for _ in 0..8 {
        let reply = soon("a refusal", answers.join_next()).await.unwrap().unwrap();
        reply.is(503, "overloaded");
        assert_eq!(reply.header("retry-after"), Some("1"));
    }
    assert_eq!(upstream.log.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_18_slow_body_is_408() {
    let (upstream, proxy) = proxied(&["--body-timeout", "1s"]).await;
    let stream = TcpStream::connect(&proxy.address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    to.write_all(upload_head("k", 100_000).as_bytes()).await.unwrap();
    let trickle = tokio::spawn(async move {
        while to.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let mut answer = Vec::new();
    let end = from.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(30), end).await;
    trickle.abort();
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("/request-timeout\""), "{answer}");
    assert_eq!(upstream.log.count(), 0);
}

/// An upstream whose route `/gated` answers when the gate is opened, by closing the semaphore.
async fn gated() -> (Upstream, Arc<Semaphore>) {
    let gate = Arc::new(Semaphore::new(0));
    let inside = gate.clone();
    let wait = async move |State(log): State<Log>, uri: Uri, headers: HeaderMap, body: Bytes| {
        let run = log.note(Seen { uri, headers, body });
        let _ = inside.acquire().await;
        (StatusCode::CREATED, format!("run {run}"))
    };
    (Upstream::with(Router::new().route("/gated", post(wait))).await, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_18_requests_in_flight_are_limited_per_caller() {
    let (upstream, gate) = gated().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--in-flight", "2"]);
    let request = |caller: &str, key: &str| {
        let url = proxy.url("/gated");
        keyed(url, key).header("authorization", format!("Bearer {caller}"))
    };
    // One of the two clients leaves: its run still counts.
    let [one, two] = ["k1", "k2"].map(|key| tokio::spawn(send(request("a", key), "a")));
    until("both run", async || (upstream.log.count() == 2).then_some(())).await;
    one.abort();
    let refused = send(request("a", "k3"), "a").await;
    refused.is(429, "too-many-requests");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let other = tokio::spawn(send(request("b", "k3"), "a"));
    until("another caller runs", async || (upstream.log.count() == 3).then_some(())).await;
    gate.close();
    assert_eq!(two.await.unwrap().status, StatusCode::CREATED);
    assert_eq!(other.await.unwrap().status, StatusCode::CREATED);
    until("there is room again", async || {
        (send(request("a", "k3"), "a").await.status == StatusCode::CREATED).then_some(())
    })
    .await;
}

/// RFC 6455's own example of a handshake.
const HANDSHAKE: &str = "GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
const ACCEPTED: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
    sec-websocket-accept: s3pPLMBmTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// The URL of an upstream that accepts every WebSocket, and echoes.
async fn echo() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                read_head(&mut stream).await?;
                stream.write_all(ACCEPTED.as_bytes()).await.ok()?;
                let (mut from, mut to) = stream.split();
                tokio::io::copy(&mut from, &mut to).await.ok()
            });
        }
    });
    url
}

/// Reads to the end of a head; `None` where the connection ends before.
async fn read_head(stream: &mut TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(())
}

/// Opens a WebSocket; `None` where the proxy does not answer within two seconds.
async fn try_tunnel(proxy: &Proxy) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(&proxy.address).await.unwrap();
    stream.write_all(HANDSHAKE.as_bytes()).await.ok()?;
    let head = tokio::time::timeout(Duration::from_secs(2), read_head(&mut stream)).await;
    head.ok().flatten().map(|()| stream)
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_tunnels_count_as_connections() {
    let proxy = Proxy::start(&echo().await, "memory:", &["--max-connections", "4"]);
    let mut tunnels = Vec::new();
    while tunnels.len() < 10 {
        match try_tunnel(&proxy).await {
            Some(tunnel) => tunnels.push(tunnel),
            None => break,
        }
    }
    assert!(tunnels.len() <= 4, "{} tunnels with a maximum of 4 connections", tunnels.len());
    tunnels.clear();
    until("a closed tunnel makes room", async || try_tunnel(&proxy).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_idle_tunnel_is_closed() {
    let proxy = Proxy::start(&echo().await, "memory:", &["--tunnel-idle-timeout", "1s"]);
    let mut tunnel = until("a tunnel", async || try_tunnel(&proxy).await).await;
    soon("the tunnel's end", tunnel.read_to_end(&mut Vec::new())).await.unwrap();
    // Bytes in either direction keep it open for longer than that.
    until("a tunnel that is used stays open", async || {
        let mut tunnel = try_tunnel(&proxy).await?;
        for _ in 0..6 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            tunnel.write_all(b"x").await.ok()?;
            tunnel.read_u8().await.ok()?;
        }
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_detached_runs_have_a_cap() {
    let (upstream, gate) = gated().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--max-connections", "4"]);
    let mut refused = 0;
    for i in 0..40 {
        let before = upstream.log.count();
        let asked = tokio::spawn(send(keyed(proxy.url("/gated"), &format!("k{i}")), "a"));
        until("it runs or is answered", async || {
            (upstream.log.count() > before || asked.is_finished()).then_some(())
        })
        .await;
        if asked.is_finished() {
            let reply = asked.await.unwrap();
            reply.is(503, "overloaded");
            assert_eq!(reply.header("retry-after"), Some("1"));
            refused += 1;
        } else {
            asked.abort();
        }
    }
    assert!(upstream.log.count() <= 8, "{} runs at once", upstream.log.count());
    assert!(refused > 0);
    gate.close();
    until("there is room again", async || {
        let order = send(keyed(proxy.url("/gated"), "new"), "a").await;
        (order.status == StatusCode::CREATED).then_some(())
    })
    .await;
    assert!(send(keyed(proxy.url("/gated"), "k0"), "a").await.is_replay());
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_replay_is_answered_beyond_the_cap_of_detached_runs() {
    let (upstream, gate) = gated().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--max-detached", "1", "--wait", "0s"]);
    gate.add_permits(1);
    let first = send(keyed(proxy.url("/gated"), "done"), "a").await;
    assert_eq!(first.status, StatusCode::CREATED);
    gate.forget_permits(1);
    let left = tokio::spawn(send(keyed(proxy.url("/gated"), "left"), "a"));
    until("it runs", async || (upstream.log.count() == 2).then_some(())).await;
    left.abort();
    until("the cap is reached", async || {
        // A request of a key that is in progress runs nothing either.
        let refused = send(keyed(proxy.url("/gated"), "left"), "a").await;
        (refused.status == StatusCode::SERVICE_UNAVAILABLE).then_some(())
    })
    .await;
    send(keyed(proxy.url("/gated"), "new"), "a").await.is(503, "overloaded");
    assert!(send(keyed(proxy.url("/gated"), "done"), "a").await.is_replay());
    send(keyed(proxy.url("/gated"), "done"), "b").await.is(422, "key-reused");
    assert_eq!(upstream.log.count(), 2);
    gate.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_reset_streams_count() {
    let (upstream, gate) = gated().await;
    let proxy = Proxy::start(&upstream.url(), "memory:", &["--max-detached", "4"]);
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let mut refused = 0;
    for i in 0..40 {
        let before = upstream.log.count();
        let body = http_body_util::Full::new(Bytes::from("a"));
        let request = keyed(proxy.url("/gated"), &format!("k{i}")).body(body).unwrap();
        let asked = tokio::spawn(client.request(request));
        until("it runs or is answered", async || {
            (upstream.log.count() > before || asked.is_finished()).then_some(())
        })
        .await;
        if asked.is_finished() {
            Reply::of(asked.await.unwrap().unwrap()).await.unwrap().is(503, "overloaded");
            refused += 1;
        } else {
            asked.abort();
            // A reset that the proxy has not read yet would let more runs begin.
            let _ = asked.await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert!(refused > 0, "{} runs of reset streams", upstream.log.count());
    gate.close();
}
