//! Bytes that no client would send.

use crate::support::http::SentRequest;
use crate::support::server::{Server, Setup};

#[test]
fn non_http_bytes_get_a_problem_document() {
    let server = Server::start();
    for (bytes, status) in [
        (&b"GET /v1/locks/k HTTP/1.1\r\nno colon here\r\n\r\n"[..], 400),
        (b"GET /v1/locks/a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/locks/\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET /v1/locks/k HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
        (b"G@T / HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nA\x00B: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHapax-Token: \x01\r\n\r\n", 400),
        (b"POST /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
        (b"POST /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}", 400),
        (b"POST /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gibberish\r\n\r\n{}", 400),
        (b"POST /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET /v1/locks/k HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (b"GET http://evil.example/v1/locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 403),
        (b"GET http://localhost/v1/locks/k HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 403),
        (b"GET /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\nConnection: close\r\n\r\n", 400),
    ] {
        let answer = SentRequest::new(&server.address, bytes).answer();
        assert_eq!(answer.status, status, "{:?}", String::from_utf8_lossy(bytes));
        answer.problem();
    }
    assert_eq!(server.get("/v1/locks/k").send().json()["held"], false);
}

#[test]
fn unusual_but_right_requests_are_answered() {
    let server = Server::start();
    for bytes in [
        &b"GET /healthz HTTP/1.0\r\n\r\n"[..],
        b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/locks/k? HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /v1/locks/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}",
    ] {
        assert_eq!(SentRequest::new(&server.address, bytes).answer().status, 200, "{:?}", String::from_utf8_lossy(bytes));
    }
    let chunked = b"PUT /v1/records/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
        3\r\n[1,\r\n2\r\n2]\r\n0\r\n\r\n";
    assert_eq!(SentRequest::new(&server.address, chunked).answer().status, 201);
    assert_eq!(server.get("/v1/records/k").send().text(), "[1,2]");
}

#[test]
fn body_that_breaks_off_stores_nothing() {
    let server = Server::start();
    let ask = server.put("/v1/records/k").json("[1,2,3]").bytes();
    SentRequest::new(&server.address, &ask[..ask.len() - 1]).hang_up();
    let endless = b"PUT /v1/records/k HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1]\r\n";
    SentRequest::new(&server.address, endless).hang_up();
    assert_eq!(server.get("/healthz").status(), 200);
    server.get("/v1/records/k").is(404, "record-missing");
}

#[test]
fn endless_body_is_cut_off() {
    let server = Server::start();
    let head = format!(
        "PUT /v1/records/k HTTP/1.1\r\nHost: {}\r\nTransfer-Encoding: chunked\r\n\r\n",
        server.address
    );
    let mut sent = SentRequest::new(&server.address, head.as_bytes());
    let chunk = [b"10000\r\n".as_slice(), &[b'1'; 0x10000], b"\r\n"].concat();
    let mut sent_bytes = 0_u64;
    while sent.more(&chunk) {
        sent_bytes += chunk.len() as u64;
        assert!(sent_bytes < 1 << 32, "it reads for ever");
    }
    assert_eq!(server.get("/healthz").status(), 200);
}

#[test]
fn body_declared_too_large_is_refused_at_once() {
    // A server that waited for the body would answer 408 after this time.
    let server = Setup::memory().flags(&["--body-timeout", "20s"]).start();
    let head = b"PUT /v1/records/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\nConnection: close\r\n\r\n";
    SentRequest::new(&server.address, head).answer().is(413, "payload-too-large");
}
