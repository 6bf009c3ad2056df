//! Taking a connection over from the HTTP library: it has read the request, and its answer is
//! written by somebody who can do so at less cost.

use std::fmt::Write;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use hapax::{Clock, SystemClock};
use hyper::http::response::Parts;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::drain::Stopping;

type Going = Pin<Box<dyn Future<Output = ()> + Send>>;
type GoOn = Box<dyn FnOnce(Bare, Bytes) -> Going + Send>;

/// A connection that was taken over. Its place is taken, and it is waited for at the end, while this
/// is there.
pub(crate) struct Bare {
    pub(crate) socket: TcpStream,
    _place: OwnedSemaphorePermit,
    _stop: Stopping,
}

impl Bare {
    pub(super) fn new(socket: TcpStream, place: OwnedSemaphorePermit, stop: Stopping) -> Self {
        Self { socket, _place: place, _stop: stop }
    }
}

/// Among the extensions of a response: who goes on with the connection, if it is a bare one. The
/// response's own body stands for it wherever it is not.
#[derive(Clone)]
pub(crate) struct Takeover(Arc<Mutex<Option<GoOn>>>);

impl Takeover {
    /// Goes on with the socket, to which the head of the response is to be written first. Its body
    /// is chunked, and the connection ends with it.
    pub(crate) fn new<F>(go_on: impl FnOnce(Bare, Bytes) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let go_on: GoOn = Box::new(|bare, head| Box::pin(go_on(bare, head)));
        Self(Arc::new(Mutex::new(Some(go_on))))
    }

    /// In a task of its own: that of the HTTP library has room for much that is not needed any more.
    pub(super) fn go_on(self, bare: Bare, head: Bytes) {
        let go_on = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(go_on) = go_on {
            tokio::spawn(go_on(bare, head));
        }
    }
}

/// The head of a response as HTTP/1.1 writes it.
pub(super) fn head(parts: &Parts) -> Bytes {
    let mut text = Vec::with_capacity(512);
    let reason = parts.status.canonical_reason().unwrap_or_default();
    text.extend(format!("HTTP/1.1 {} {reason}\r\n", parts.status.as_u16()).bytes());
    for (name, value) in &parts.headers {
        text.extend(name.as_str().bytes().chain(*b": ").chain(value.as_bytes().iter().copied()));
        text.extend(b"\r\n");
    }
    let now = UNIX_EPOCH + Duration::from_millis(SystemClock.now().0);
    let mut rest = String::new();
    let _ = write!(
        rest,
        "date: {}\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n",
        httpdate::fmt_http_date(now)
    );
    text.extend(rest.bytes());
    text.into()
}
