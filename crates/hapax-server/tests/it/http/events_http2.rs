//! Event streams over HTTP/2.

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;

use crate::support::WAIT_TIMEOUT;
use crate::support::server::{Server, Setup};

async fn connect(server: &Server) -> SendRequest<Empty<Bytes>> {
    let socket = tokio::net::TcpStream::connect(&server.address).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn follow(
    server: &Server,
    sender: &mut SendRequest<Empty<Bytes>>,
    job: &str,
) -> Response<Incoming> {
    let uri = format!("http://{}/v1/jobs/scan/{job}/events", server.address);
    let request = Request::get(uri).body(Empty::new()).unwrap();
    sender.send_request(request).await.unwrap()
}

/// Reads until this was seen, or to the end.
async fn until(body: &mut Incoming, word: &str) -> String {
    let mut text = String::new();
    while !text.contains(word) {
        let frame =
            tokio::time::timeout(WAIT_TIMEOUT, body.frame()).await.expect("something comes");
        let Some(frame) = frame else { break };
        text.push_str(&String::from_utf8_lossy(&frame.unwrap().into_data().unwrap()));
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_streams_share_a_connection() {
    let server = Server::start();
    let mut sender = connect(&server).await;
    let mut bodies = Vec::new();
    for job in ["a", "b", "c"] {
        let (_, epoch) = tokio::task::block_in_place(|| server.publish(job, "vision", 10));
        let response = follow(&server, &mut sender, job).await;
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        let first = until(&mut body, "\"seq\":10").await;
        assert!(first.contains(&format!("id: {epoch}-1\nevent: vision\ndata: {{")), "{first}");
        bodies.push((job, body));
    }
    for (job, mut body) in bodies {
        tokio::task::block_in_place(|| server.finish(job));
        let rest = until(&mut body, "never").await;
        assert!(rest.contains("event: done") && rest.ends_with("\n\n"), "{rest}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_stream_is_cut_off_while_others_continue() {
    let server = Setup::memory().flags(&["--sse-write-timeout", "300ms"]).start();
    let mut sender = connect(&server).await;
    let _asleep = follow(&server, &mut sender, "slow").await;
    let mut awake = follow(&server, &mut sender, "other").await.into_body();
    tokio::task::block_in_place(|| {
        let data = json!("x".repeat(400_000));
        for seq in 0..20 {
            server.publish_data("slow", "vision", seq, &data);
        }
        let ended = "hapax_sse_ended_total{reason=\"slow\"} 1";
        server.counts(ended);
        server.publish("other", "vision", 10);
    });
    assert!(until(&mut awake, "\"seq\":10").await.contains("event: vision"));
}
