//! A client whose upload is refused sees the response, not a broken connection.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::proxy_support::{proxied, soon};
use crate::support::server::Server;

/// Reads a problem document to the end of its JSON.
async fn read_document(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    while !answer.ends_with(b"}") {
        let count = soon("the response", stream.read_buf(&mut answer)).await.unwrap();
        assert_ne!(count, 0, "{}", String::from_utf8_lossy(&answer));
    }
    String::from_utf8(answer).unwrap()
}

/// Sends a head, reads the 413, and only then sends the body. Returns whether the connection stood it.
async fn uploads_after_413(address: &str, head: &str) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nhost: {address}\r\ncontent-length: 4194304\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = read_document(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    for _ in 0..64 {
        if stream.write_all(&[b'x'; 64 * 1024]).await.is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    stream.shutdown().await.is_ok() && stream.read(&mut [0]).await.is_ok_and(|count| count == 0)
}

/// A connection is read for only a second after its response, which a stalled machine may miss; so one
/// upload of several must pass.
#[tokio::test(flavor = "multi_thread")]
async fn fault_37_refused_upload_is_not_cut() {
    let ((_upstream, proxy), server) = (proxied(&[]).await, Server::start());
    for (address, head) in [
        (&proxy.address, "POST /orders HTTP/1.1\r\nidempotency-key: k"),
        (&server.address, "PUT /v1/records/k HTTP/1.1"),
    ] {
        let mut passed = false;
        for _ in 0..20 {
            passed = passed || uploads_after_413(address, head).await;
        }
        assert!(passed, "{head}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_37_expect_continue_gets_413_and_no_100() {
    let ((_upstream, proxy), server) = (proxied(&[]).await, Server::start());
    for (address, head) in [
        (&proxy.address, "POST /orders HTTP/1.1\r\nidempotency-key: k"),
        (&server.address, "PUT /v1/records/k HTTP/1.1"),
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "{head}\r\nhost: {address}\r\nexpect: 100-continue\r\ncontent-length: 4194304\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let answer = read_document(&mut stream).await;
        assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    }
}
