//! A plain HTTP client.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Builder;
use hyper::{Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::soon;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) async fn of(response: Response<Incoming>) -> Result<Self, hyper::Error> {
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Self { status: parts.status, headers: parts.headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("text"))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// The code of a problem document; empty for another response.
    pub(crate) fn problem(&self) -> String {
        if self.header("content-type") != Some("application/problem+json") {
            return String::new();
        }
        let kind = self.json()["type"].as_str().expect("a type").to_owned();
        kind.rsplit('/').next().unwrap_or_default().to_owned()
    }

    #[track_caller]
    pub(crate) fn is(&self, status: u16, code: &str) {
        assert_eq!((self.status.as_u16(), self.problem().as_str()), (status, code));
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }

    /// The parts that are equal for all requests with one key.
    pub(crate) fn essence(&self) -> (StatusCode, Vec<(String, Vec<u8>)>, Bytes) {
        let own =
            ["date", "idempotent-replayed", "idempotency-expires", "set-cookie", "connection"];
        let mut headers: Vec<_> = self
            .headers
            .iter()
            .filter(|(name, _)| !own.contains(&name.as_str()))
            .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
            .collect();
        headers.sort();
        (self.status, headers, self.body.clone())
    }
}

pub(crate) type Pooled = Client<HttpConnector, Full<Bytes>>;

pub(crate) fn pooled() -> Pooled {
    Client::builder(TokioExecutor::new()).build_http()
}

pub(crate) fn keyed(url: impl AsRef<str>, key: &str) -> Builder {
    Request::post(url.as_ref()).header("idempotency-key", key)
}

/// Sends a request over a new connection.
pub(crate) async fn send(request: Builder, body: impl Into<Bytes>) -> Reply {
    try_send(request, body).await.expect("an answer")
}

/// As [`send`], where there may be no response.
pub(crate) async fn try_send(request: Builder, body: impl Into<Bytes>) -> Result<Reply, String> {
    let response = open(request, body).await?;
    let whole = soon("the answer's end", Reply::of(response)).await;
    whole.map_err(|error| format!("cut: {error}"))
}

/// Sends a request, and returns with the response's head.
pub(crate) async fn open(
    request: Builder,
    body: impl Into<Bytes>,
) -> Result<Response<Incoming>, String> {
    let request = request.body(Full::new(body.into())).expect("a request");
    let answer = soon("the answer's head", pooled().request(request)).await;
    answer.map_err(|error| format!("no answer: {error}"))
}

/// Sends raw bytes, and returns everything received until the other side closes.
pub(crate) async fn raw(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(bytes).await.expect("sent");
    let mut answer = Vec::new();
    let _ = soon("the connection's end", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}
