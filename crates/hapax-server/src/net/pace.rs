//! A connection whose client may not take for ever: to send a request's headers, to send another
//! request, or to read an answer.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use super::listener::Limits;

/// The start of every HTTP/2 connection.
const HTTP2: &[u8] = b"PRI ";

/// Where a connection stands, shared by its two halves: the bytes below the HTTP library, and the
/// requests above it.
#[derive(Clone)]
pub(crate) struct Pace(Arc<Mutex<Phase>>);

struct Phase {
    in_flight: usize,
    /// Whether the client is in the middle of a request's headers, as far as bytes can tell.
    asking: bool,
    since: Instant,
}

impl Pace {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is being answered until the guard is dropped.
    pub(crate) fn request(&self) -> InFlight {
        self.phase().in_flight += 1;
        InFlight(self.clone())
    }
}

/// A request that is being answered.
pub(crate) struct InFlight(Pace);

impl Drop for InFlight {
    fn drop(&mut self) {
        let mut phase = self.0.phase();
        phase.in_flight -= 1;
        phase.asking = false;
        phase.since = Instant::now();
    }
}

/// What is said to requests that never become one.
#[derive(Clone, Copy)]
pub(crate) struct Refusals {
    /// For headers that took too long.
    pub(crate) too_slow: fn() -> &'static [u8],
    /// Instead of an answer that the HTTP library made by itself, if it is one.
    pub(crate) instead_of: fn(&[u8]) -> Option<&'static [u8]>,
}

/// The connection.
pub(crate) struct Paced<S> {
    stream: S,
    pace: Pace,
    limits: Limits,
    refusals: Option<Refusals>,
    http2: Option<bool>,
    /// What was read to find out which HTTP it is, and is still to be read.
    ahead: Vec<u8>,
    reading: Pin<Box<Sleep>>,
    writing: Pin<Box<Sleep>>,
    stalled: bool,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, limits: Limits, refusals: Option<Refusals>) -> (Self, Pace) {
        // A new connection has to begin with a request.
        let phase = Phase { in_flight: 0, asking: true, since: Instant::now() };
        let pace = Pace(Arc::new(Mutex::new(phase)));
        let paced = Self {
            stream,
            pace: pace.clone(),
            limits,
            refusals,
            http2: None,
            ahead: Vec::new(),
            reading: Box::pin(sleep(limits.header)),
            writing: Box::pin(sleep(limits.idle)),
            stalled: false,
        };
        (paced, pace)
    }

    pub(super) fn into_inner(self) -> S {
        self.stream
    }

    /// When the client has taken too long; never while it waits for us.
    fn deadline(&self) -> Option<Instant> {
        let phase = self.pace.phase();
        // HTTP/2 has frames that belong to no request, and tells little by its bytes.
        let asking = phase.asking && self.http2 != Some(true);
        let limit = if asking { self.limits.header } else { self.limits.idle };
        (phase.in_flight == 0).then(|| phase.since + limit)
    }

    /// The HTTP library waits for the client already while it answers, and not anew after that: looks
    /// again before the client can have been idle for too long.
    fn look_again(&mut self, cx: &mut Context<'_>) {
        let latest = Instant::now() + self.limits.idle;
        if self.reading.is_elapsed() || self.reading.deadline() > latest {
            self.reading.as_mut().reset(latest);
        }
        if self.reading.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    fn took(&mut self, bytes: &[u8]) {
        let first = self.http2.is_none();
        self.http2.get_or_insert_with(|| bytes.starts_with(HTTP2));
        let mut phase = self.pace.phase();
        if phase.in_flight == 0 && (first || !phase.asking) {
            phase.asking = true;
            phase.since = Instant::now();
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Paced<S> {
    /// Whether the client begins with HTTP/2, as soon as that can be told.
    pub(super) async fn begins_http2(&mut self) -> io::Result<bool> {
        let mut ahead = Vec::with_capacity(HTTP2.len());
        while ahead.len() < HTTP2.len() && HTTP2.starts_with(&ahead) {
            let (mut bytes, missing) = ([0; HTTP2.len()], HTTP2.len() - ahead.len());
            match self.read(&mut bytes[..missing]).await? {
                0 => break,
                n => ahead.extend_from_slice(&bytes[..n]),
            }
        }
        let http2 = ahead == HTTP2;
        self.http2 = Some(http2);
        self.ahead = ahead;
        Ok(http2)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let most = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead[..most]);
            self.ahead.drain(..most);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            if buf.filled().len() > before {
                self.took(&buf.filled()[before..]);
            }
            return Poll::Ready(done);
        }
        let Some(deadline) = self.deadline() else {
            self.look_again(cx);
            return Poll::Pending;
        };
        if self.reading.deadline() != deadline {
            self.reading.as_mut().reset(deadline);
        }
        ready!(self.reading.as_mut().poll(cx));
        if let Some(refusals) = self.refusals
            && self.http2 == Some(false)
            && self.pace.phase().asking
        {
            self.refuse(cx, (refusals.too_slow)());
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(document) = self.refusals.and_then(|refusals| (refusals.instead_of)(buf)) {
            self.refuse(cx, document);
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.written(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        // What may have to be replaced is looked at as a whole.
        self.refusals.is_none() && self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S: AsyncWrite + Unpin> Paced<S> {
    /// Nothing else is being written while a request is awaited; should the buffer be full all the
    /// same, the client does not read and misses nothing.
    fn refuse(&mut self, cx: &mut Context<'_>, document: &[u8]) {
        let _ = Pin::new(&mut self.stream).poll_write(cx, document);
    }

    fn written(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if polled.is_ready() {
            self.stalled = false;
            return polled;
        }
        if !self.stalled {
            self.stalled = true;
            self.writing.as_mut().reset(Instant::now() + self.limits.idle);
        }
        ready!(self.writing.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}
