//! A server on loopback over a SQLite file.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{HandlerGate, Runs};
use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use hapax_http::{IdempotencyConfig, IdempotencyLayer};
use hapax_sqlite::SqliteStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

struct Server {
    address: SocketAddr,
    layer: IdempotencyLayer,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Server {
    /// A server over this file, as after a restart.
    async fn start<H, T>(file: &Path, handler: H) -> Self
    where
        H: axum::handler::Handler<T, ()>,
        T: 'static,
    {
        let config = hapax_sqlite::SqliteConfig::new(file).timeout(Duration::from_secs(20));
        let store = Arc::new(SqliteStore::open(config).unwrap());
        let config = IdempotencyConfig::new().with_store_timeout(Duration::from_secs(60));
        let layer = IdempotencyLayer::new(store).with_config(config);
        let app = Router::new().fallback(handler).layer(layer.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            axum::serve(listener, app).with_graceful_shutdown(stopped).await.unwrap();
        });
        Self { address, layer, stop, served }
    }

    /// Shuts down gracefully.
    async fn stop(self) {
        let _ = self.stop.send(());
        self.served.await.unwrap();
        self.layer.drain().await;
    }

    async fn ask(&self, key: &str) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "POST /orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Idempotency-Key: {key}\r\nContent-Length: 3\r\n\r\ntea"
        );
        connection.write_all(request.as_bytes()).await.unwrap();
        connection
    }

    /// Head (without the date) and body, as sent over the wire.
    async fn answer(&self, key: &str) -> (Vec<String>, Vec<u8>) {
        let mut bytes = Vec::new();
        self.ask(key).await.read_to_end(&mut bytes).await.unwrap();
        let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let lines = head.lines().filter(|line| !line.starts_with("date:")).map(str::to_owned);
        (lines.collect(), bytes[end + 4..].to_vec())
    }
}

fn without_replay_marks(mut head: Vec<String>) -> Vec<String> {
    let before = head.len();
    head.retain(|line| !line.starts_with("idempotent-replayed: true"));
    head.retain(|line| !line.starts_with("idempotency-expires: "));
    assert_eq!(before - head.len(), 2);
    head.sort();
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_after_restart_has_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hapax.db");
    let runs = Runs::default();
    let counted = runs.clone();
    let handler = move || async move {
        let headers = [("location", "/orders/1"), ("content-type", "application/octet-stream")];
        (axum::http::StatusCode::CREATED, headers, vec![0, 159, 146, counted.add() as u8])
    };
    let server = Server::start(&file, handler.clone()).await;
    let (mut first_head, first_body) = server.answer("k").await;
    server.stop().await;
    let server = Server::start(&file, handler).await;
    let (again_head, again_body) = server.answer("k").await;
    first_head.sort();
    assert_eq!(without_replay_marks(again_head), first_head);
    assert_eq!((again_body, &first_body[..]), (first_body.clone(), &[0, 159, 146, 1][..]));
    assert_eq!(runs.count(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_client_gets_the_response_on_retry() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hapax.db");
    let (gate, runs) = (HandlerGate::default(), Runs::default());
    let (inside, counted) = (gate.clone(), runs.clone());
    let handler = move || async move {
        inside.pass().await;
        format!("order {}", counted.add())
    };
    let server = Server::start(&file, handler).await;
    let connection = server.ask("k").await;
    gate.reached().await;
    drop(connection);
    // The server ends as well; only the layer still waits for the run.
    let layer = server.layer.clone();
    let stopping = tokio::spawn(server.stop());
    while layer.running() > 0 && !stopping.is_finished() {
        gate.release_one();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stopping.await.unwrap();
    let server = Server::start(&file, || async { "ran again" }).await;
    assert_eq!(server.answer("k").await.1, b"order 1");
    assert_eq!(runs.count(), 1);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_of_streamed_response_is_one_piece() {
    let folder = tempfile::tempdir().unwrap();
    let handler = || async {
        let pieces = futures_util::stream::unfold(0, |i| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            (i < 5).then(|| (Ok::<_, std::io::Error>(format!("{i},")), i + 1))
        });
        Body::from_stream(pieces).into_response()
    };
    let server = Server::start(&folder.path().join("hapax.db"), handler).await;
    let (head, body) = server.answer("k").await;
    assert!(head.contains(&"transfer-encoding: chunked".to_owned()));
    assert_eq!(body, b"2\r\n0,\r\n2\r\n1,\r\n2\r\n2,\r\n2\r\n3,\r\n2\r\n4,\r\n0\r\n\r\n");
    let (head, body) = server.answer("k").await;
    assert!(head.contains(&"content-length: 10".to_owned()));
    assert_eq!(body, b"0,1,2,3,4,");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_response_ends_with_an_error_on_the_wire() {
    let folder = tempfile::tempdir().unwrap();
    let gate = HandlerGate::default();
    let inside = gate.clone();
    let handler = move || async move {
        let pieces = futures_util::stream::unfold(0, move |i| {
            let inside = inside.clone();
            async move {
                inside.pass().await;
                let piece = if i < 2 { Ok("piece") } else { Err(std::io::Error::other("cut")) };
                Some((piece, i + 1))
            }
        });
        Body::from_stream(pieces).into_response()
    };
    let server = Server::start(&folder.path().join("hapax.db"), handler).await;
    let mut connection = server.ask("k").await;
    let mut bytes = Vec::new();
    // Let each piece reach the client before the next: unsent data is lost with the cut.
    for pieces in 1..=2 {
        gate.release_one();
        let come = |bytes: &[u8]| bytes.windows(10).filter(|w| w == b"5\r\npiece\r\n").count();
        while come(&bytes) < pieces {
            assert!(connection.read_buf(&mut bytes).await.unwrap() > 0);
        }
    }
    gate.release_one();
    connection.read_to_end(&mut bytes).await.unwrap();
    assert!(bytes.starts_with(b"HTTP/1.1 200 OK\r\n") && !bytes.ends_with(b"0\r\n\r\n"));
    let (head, _) = server.answer("k").await;
    assert_eq!(head[0], "HTTP/1.1 409 Conflict");
    server.stop().await;
}
