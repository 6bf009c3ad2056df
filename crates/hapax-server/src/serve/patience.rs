//! A connection whose client may not take for ever: to send a request's headers, to send another
//! request, or to read an answer.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::refusal;
use crate::settings::Settings;

/// The start of every HTTP/2 connection.
const HTTP2: &[u8] = b"PRI ";

/// Where a connection stands, shared by its two halves: the bytes below the HTTP library, and the
/// requests above it.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<Phase>>);

struct Phase {
    in_flight: usize,
    /// Whether bytes of the next request have come.
    begun: bool,
    /// Whether a request was answered before.
    used: bool,
    since: Instant,
}

impl Pace {
    fn new() -> Self {
        let phase = Phase { in_flight: 0, begun: false, used: false, since: Instant::now() };
        Self(Arc::new(Mutex::new(phase)))
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is being answered until the guard is dropped.
    pub(crate) fn request(&self) -> impl Drop + use<> {
        self.phase().in_flight += 1;
        Answering(self.clone())
    }
}

struct Answering(Pace);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut phase = self.0.phase();
        phase.in_flight -= 1;
        phase.begun = false;
        phase.used = true;
        phase.since = Instant::now();
    }
}

/// The connection.
pub(crate) struct Patient {
    stream: TcpStream,
    pace: Pace,
    http2: Option<bool>,
    header_limit: Duration,
    idle_limit: Duration,
    reading: Pin<Box<Sleep>>,
    writing: Pin<Box<Sleep>>,
    stalled: bool,
}

impl Patient {
    pub(crate) fn new(stream: TcpStream, settings: &Settings) -> (Self, Pace) {
        let pace = Pace::new();
        let patient = Self {
            stream,
            pace: pace.clone(),
            http2: None,
            header_limit: settings.header_timeout,
            idle_limit: settings.idle_timeout,
            reading: Box::pin(sleep(settings.header_timeout)),
            writing: Box::pin(sleep(settings.idle_timeout)),
            stalled: false,
        };
        (patient, pace)
    }

    /// When the client has taken too long; never while it waits for us.
    fn deadline(&self) -> Option<Instant> {
        let phase = self.pace.phase();
        // HTTP/2 has frames that belong to no request, and tells little by its bytes.
        let asking = (phase.begun || !phase.used) && self.http2 != Some(true);
        let limit = if asking { self.header_limit } else { self.idle_limit };
        (phase.in_flight == 0).then(|| phase.since + limit)
    }

    fn took(&mut self, bytes: &[u8]) {
        if self.http2.is_none() {
            self.http2 = Some(bytes.starts_with(HTTP2));
        }
        let mut phase = self.pace.phase();
        if phase.in_flight == 0 && !phase.begun {
            phase.begun = true;
            phase.since = Instant::now();
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            if buf.filled().len() > before {
                self.took(&buf.filled()[before..]);
            }
            return Poll::Ready(done);
        }
        let Some(deadline) = self.deadline() else { return Poll::Pending };
        if self.reading.deadline() != deadline {
            self.reading.as_mut().reset(deadline);
        }
        ready!(self.reading.as_mut().poll(cx));
        if self.http2 == Some(false) && self.pace.phase().begun {
            // Nothing else is being written while a request is awaited; should the buffer be full
            // all the same, the client does not read and misses nothing.
            let _ = self.stream.try_write(refusal::too_slow());
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(document) = refusal::instead_of(buf) {
            // The library answers malformed requests by itself, without a word.
            let _ = self.stream.try_write(document);
            return Poll::Ready(Ok(buf.len()));
        }
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_write(cx, buf) {
            self.stalled = false;
            return Poll::Ready(done);
        }
        if !self.stalled {
            self.stalled = true;
            let deadline = Instant::now() + self.idle_limit;
            self.writing.as_mut().reset(deadline);
        }
        ready!(self.writing.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
