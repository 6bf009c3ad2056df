//! An HTTP client that tells "was not sent" from "may have been done".

use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, ETAG, HOST};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::history::CallOutcome;
use crate::random::SeededRandom;

/// Longer than the servers' own timeouts: a client that leaves early hides what the server would have said.
const CALL_TIMEOUT: Duration = Duration::from_secs(4);

/// A whole answer.
pub(crate) struct ApiAnswer {
    pub(crate) status: StatusCode,
    pub(crate) etag: Option<String>,
    /// Whether the proxy says that the answer comes from the store.
    pub(crate) replayed: bool,
    pub(crate) body: Bytes,
}

impl ApiAnswer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The code of a problem document, or the status.
    pub(crate) fn problem(&self) -> String {
        let document = self.json();
        let code = document["type"].as_str().and_then(|kind| kind.rsplit('/').next());
        code.map_or_else(|| self.status.as_str().to_owned(), str::to_owned)
    }

    /// A call that was refused has changed nothing; after a server error nobody knows.
    pub(crate) fn outcome<T>(self, read: impl FnOnce(&Self) -> Option<T>) -> CallOutcome<T> {
        if self.status.is_success() {
            return match read(&self) {
                Some(result) => CallOutcome::Done(result),
                None => CallOutcome::Unknown(format!("unreadable: {}", self.status)),
            };
        }
        if self.status.is_client_error() && self.status != StatusCode::REQUEST_TIMEOUT {
            return CallOutcome::Refused(self.problem());
        }
        CallOutcome::Unknown(self.problem())
    }
}

/// One connection to one of several addresses, made anew, to any of them, after every failure.
pub(crate) struct ApiClient {
    addresses: Vec<String>,
    next: usize,
    connection: Option<SendRequest<Full<Bytes>>>,
    has_failed: bool,
}

impl ApiClient {
    pub(crate) fn new(addresses: &[String], number: u32) -> Self {
        Self {
            addresses: addresses.to_vec(),
            next: number as usize,
            connection: None,
            has_failed: false,
        }
    }

    /// Changes to the next address.
    pub(crate) fn move_on(&mut self) {
        self.connection = None;
        self.next += 1;
    }

    /// Whether a call has failed since this was asked.
    pub(crate) fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Any of the addresses.
    pub(crate) fn random_address(&self, random: &mut SeededRandom) -> String {
        random.pick(&self.addresses).clone()
    }

    /// A request to fill in.
    pub(crate) fn request(method: Method, path: &str) -> hyper::http::request::Builder {
        Request::builder().method(method).uri(path)
    }

    /// Sends a request. `None`: it was not sent, because there is no connection.
    pub(crate) async fn send(
        &mut self,
        request: hyper::http::request::Builder,
        body: Option<Value>,
    ) -> Option<anyhow::Result<ApiAnswer>> {
        if self.connection.as_ref().is_none_or(SendRequest::is_closed) {
            self.move_on();
            let address = &self.addresses[self.next % self.addresses.len()];
            let connect = tokio::time::timeout(CALL_TIMEOUT, connect(address));
            self.connection = connect.await.ok()?.ok();
        }
        let address = &self.addresses[self.next % self.addresses.len()];
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request
            .header(HOST, address)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .ok()?;
        let connection = self.connection.as_mut()?;
        connection.ready().await.ok()?;
        let answer = match tokio::time::timeout(CALL_TIMEOUT, exchange(connection, request)).await {
            Ok(answer) => answer,
            Err(_) => Err(anyhow!("timeout")),
        };
        if answer.is_err() {
            self.connection = None;
            self.has_failed = true;
        }
        Some(answer)
    }

    /// Sends a request and reads its outcome; `None` if it was not sent.
    pub(crate) async fn call<T>(
        &mut self,
        request: hyper::http::request::Builder,
        body: Option<Value>,
        read: impl FnOnce(&ApiAnswer) -> Option<T>,
    ) -> Option<CallOutcome<T>> {
        Some(match self.send(request, body).await? {
            Ok(answer) => answer.outcome(read),
            Err(error) => CallOutcome::Unknown(error.to_string()),
        })
    }
}

async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<ApiAnswer> {
    let response = connection.send_request(request).await.map_err(|_| anyhow!("cut"))?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| anyhow!("cut in the answer"))?.to_bytes();
    let etag = head.headers.get(ETAG).and_then(|etag| etag.to_str().ok()).map(str::to_owned);
    let replayed = head.headers.contains_key("idempotent-replayed");
    Ok(ApiAnswer { status: head.status, etag, replayed, body })
}

async fn connect(address: &str) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    // Ends when the sender is dropped or the connection fails.
    tokio::spawn(connection);
    Ok(sender)
}

/// Opens a stream on a connection of its own; the caller bounds the time.
pub(crate) async fn open_stream(
    address: &str,
    request: hyper::http::request::Builder,
) -> anyhow::Result<(Response<Incoming>, SendRequest<Full<Bytes>>)> {
    let mut sender = connect(address).await?;
    let request = request.header(HOST, address).body(Full::new(Bytes::new()))?;
    let response = sender.send_request(request).await?;
    Ok((response, sender))
}
