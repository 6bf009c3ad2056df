//! Taking a connection over from the HTTP library once it has read the request, so that its handler
//! writes the response to the socket at less cost.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hapax::{Clock, SystemClock};
use hyper::http::response::Parts;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::listener::DrainSignal;

type BoxFuture = Pin<Box<dyn Future<Output = ()> + Send>>;
type Continuation = Box<dyn FnOnce(RawConnection, Bytes) -> BoxFuture + Send>;

/// A connection that was taken over; it counts against the maximum, and the drain waits for it.
pub(crate) struct RawConnection {
    pub(crate) socket: TcpStream,
    _permit: OwnedSemaphorePermit,
    _drain: DrainSignal,
}

impl RawConnection {
    pub(super) fn new(socket: TcpStream, permit: OwnedSemaphorePermit, drain: DrainSignal) -> Self {
        Self { socket, _permit: permit, _drain: drain }
    }
}

/// An extension of a response: the continuation that takes the connection over where it is a plain
/// HTTP/1.1 socket. Elsewhere the response's own body is sent.
#[derive(Clone)]
pub(crate) struct Takeover(Arc<Mutex<Option<Continuation>>>);

impl Takeover {
    /// The continuation gets the socket and the head of the response, which it writes first. The
    /// body is chunked, and the connection ends with it.
    pub(crate) fn new<F>(
        continuation: impl FnOnce(RawConnection, Bytes) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let continuation: Continuation =
            Box::new(|connection, head| Box::pin(continuation(connection, head)));
        Self(Arc::new(Mutex::new(Some(continuation))))
    }

    /// Runs the continuation in a new task, which is without the buffers of the HTTP library.
    pub(super) fn run(self, connection: RawConnection, head: Bytes) {
        let continuation = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(continuation) = continuation {
            tokio::spawn(continuation(connection, head));
        }
    }
}

pub(super) fn response_head(parts: &Parts) -> Bytes {
    let mut text = Vec::with_capacity(512);
    let reason = parts.status.canonical_reason().unwrap_or_default();
    text.extend(format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_u16()).bytes());
    for (name, value) in &parts.headers {
        text.extend(name.as_str().bytes().chain(*b": ").chain(value.as_bytes().iter().copied()));
        text.extend(b"\r\n");
    }
    let now = UNIX_EPOCH + Duration::from_millis(SystemClock.now().0);
    let date = httpdate::fmt_http_date(now);
    let last = "connection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    text.extend(format!("date: {date}\r\n{last}").bytes());
    text.into()
}
