//! The load: every task has its own connection, with one request at a time.

use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hapax_workload::{BenchError, BenchOperation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Mutex;

use super::handler::{ANSWER, REQUEST};
use super::setup::HttpTarget;
use crate::raw::engine;
use crate::turns::fresh_run_id;

/// The keys of the requests, which no other run uses.
pub(crate) struct LoadKeys {
    run_id: String,
    choice: KeyChoice,
}

#[derive(Clone, Copy, PartialEq)]
enum KeyChoice {
    Fresh,
    One,
    None,
}

impl LoadKeys {
    /// Each request has its own key: first runs.
    pub(crate) fn fresh() -> Self {
        Self::new(KeyChoice::Fresh)
    }

    /// All requests have the same key: replays.
    pub(super) fn one() -> Self {
        Self::new(KeyChoice::One)
    }

    /// No request has a key.
    pub(super) fn none() -> Self {
        Self::new(KeyChoice::None)
    }

    fn new(choice: KeyChoice) -> Self {
        Self { run_id: fresh_run_id(), choice }
    }

    fn key(&self, task: usize, turn: u64) -> Option<String> {
        match self.choice {
            KeyChoice::Fresh => Some(format!("{}-{task}-{turn}", self.run_id)),
            KeyChoice::One => Some(self.run_id.clone()),
            KeyChoice::None => None,
        }
    }
}

pub(crate) struct HttpLoad {
    keys: LoadKeys,
    /// Whether every response has to be a replay.
    replays: bool,
    /// One for each task, so that the lock is never contended.
    connections: Vec<Mutex<LoadConnection>>,
}

impl HttpLoad {
    /// Connects, and settles the key that is to be replayed.
    pub(super) async fn connect(
        target: &HttpTarget,
        keys: LoadKeys,
        connections: usize,
    ) -> Result<Arc<Self>, BenchError> {
        let address = target.server.address();
        let replays = target.role.keeps_answers() && keys.choice == KeyChoice::One;
        Self::to(address, keys, replays, connections).await
    }

    pub(crate) async fn to(
        address: SocketAddr,
        keys: LoadKeys,
        replays: bool,
        connections: usize,
    ) -> Result<Arc<Self>, BenchError> {
        let open = async || LoadConnection::open(address).await.map_err(engine);
        if keys.choice == KeyChoice::One {
            open().await?.post(keys.key(0, 0).as_deref()).await?;
        }
        let mut opened = Vec::new();
        for _ in 0..connections {
            opened.push(Mutex::new(open().await?));
        }
        Ok(Arc::new(Self { keys, replays, connections: opened }))
    }
}

#[async_trait]
impl BenchOperation for HttpLoad {
    async fn run(&self, task: usize, turn: u64) -> Result<(), BenchError> {
        let key = self.keys.key(task, turn);
        let replayed = self.connections[task].lock().await.post(key.as_deref()).await?;
        match (replayed, self.replays) {
            (true, false) => Err(BenchError::Unexpected("a request was answered with a replay")),
            (false, true) => Err(BenchError::Unexpected("a settled key ran again")),
            _ => Ok(()),
        }
    }
}

/// Far more than any expected response.
const MOST: usize = 64 * 1024;

struct LoadConnection {
    stream: TcpStream,
    /// The request before and after the line with the key.
    before_key: String,
    after_key: String,
    request: String,
    answer: Vec<u8>,
}

impl LoadConnection {
    async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let before_key = format!(
            "POST /orders HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
        );
        let after_key = format!("Content-Length: {}\r\n\r\n{REQUEST}", REQUEST.len());
        let (request, answer) = (String::new(), Vec::with_capacity(4096));
        Ok(Self { stream, before_key, after_key, request, answer })
    }

    /// Sends a request, and returns whether its response is a replay.
    async fn post(&mut self, key: Option<&str>) -> Result<bool, BenchError> {
        self.request.clear();
        self.request.push_str(&self.before_key);
        if let Some(key) = key {
            for part in ["Idempotency-Key: \"", key, "\"\r\n"] {
                self.request.push_str(part);
            }
        }
        self.request.push_str(&self.after_key);
        self.stream.write_all(self.request.as_bytes()).await.map_err(engine)?;
        self.answer.clear();
        loop {
            if self.stream.read_buf(&mut self.answer).await.map_err(engine)? == 0 {
                return Err(BenchError::Unexpected("a kept-alive connection was closed"));
            }
            if let Some(replayed) = read(&self.answer)? {
                return Ok(replayed);
            }
            if self.answer.len() > MOST {
                return Err(BenchError::Unexpected("an answer has no end"));
            }
        }
    }
}

/// Whether the response is a replay; `None` while it is incomplete.
fn read(bytes: &[u8]) -> Result<Option<bool>, BenchError> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let head = std::str::from_utf8(&bytes[..end])
        .map_err(|_| BenchError::Unexpected("headers that are no text"))?;
    let body = &bytes[end + 4..];
    if !head.starts_with("HTTP/1.1 201 ") {
        return Err(BenchError::Engine(format!("201 was expected: {head}")));
    }
    let whole = match (header(head, "content-length"), header(head, "transfer-encoding")) {
        (Some(length), None) if length == ANSWER.len().to_string() => body == ANSWER.as_bytes(),
        (None, Some("chunked")) => body.ends_with(b"\r\n0\r\n\r\n"),
        _ => return Err(BenchError::Engine(format!("the handler's answer was expected: {head}"))),
    };
    let replayed = header(head, "idempotent-replayed") == Some("true");
    Ok(whole.then_some(replayed))
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    })
}

#[cfg(test)]
mod tests {
    use hapax_workload::{BenchPlan, BenchSpan, measure};

    use super::*;
    use crate::http::handler::{bare, layered};

    async fn serve(app: axum::Router) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        address
    }

    async fn load(address: SocketAddr, keys: LoadKeys, replayed: bool) -> Result<u64, BenchError> {
        let load = HttpLoad::to(address, keys, replayed, 8).await?;
        Ok(measure(load, &BenchPlan::new(8, BenchSpan::Count(200))).await?.operations)
    }

    #[tokio::test]
    async fn http_load_tells_first_runs_from_replays() {
        let address = serve(layered("memory:").await.unwrap()).await;
        assert_eq!(load(address, LoadKeys::fresh(), false).await.unwrap(), 200);
        assert_eq!(load(address, LoadKeys::one(), true).await.unwrap(), 200);
        assert_eq!(load(address, LoadKeys::none(), false).await.unwrap(), 200);
        assert!(load(address, LoadKeys::none(), true).await.is_err());
        assert!(load(address, LoadKeys::fresh(), true).await.is_err());
        assert!(load(address, LoadKeys::one(), false).await.is_err());
    }

    #[tokio::test]
    async fn http_load_sees_no_replay_of_a_bare_handler() {
        let address = serve(bare()).await;
        assert_eq!(load(address, LoadKeys::one(), false).await.unwrap(), 200);
    }

    #[test]
    fn load_response_is_read_when_complete() {
        let length = ANSWER.len();
        let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {length}\r\n\r\n");
        let chunked = "HTTP/1.1 201 Created\r\ntransfer-encoding: chunked\r\n\
                       Idempotent-Replayed: true\r\n\r\n";
        for (whole, replayed) in [
            (format!("{head}{ANSWER}"), false),
            (format!("{chunked}{length:x}\r\n{ANSWER}\r\n0\r\n\r\n"), true),
        ] {
            for end in 0..whole.len() {
                assert_eq!(read(&whole.as_bytes()[..end]).unwrap(), None, "{end} bytes");
            }
            assert_eq!(read(whole.as_bytes()).unwrap(), Some(replayed));
        }
    }

    #[test]
    fn load_response_with_another_status_fails() {
        assert!(read(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n").is_err());
        assert!(read(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
