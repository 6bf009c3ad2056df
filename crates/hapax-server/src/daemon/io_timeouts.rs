//! Timeouts of a connection: for a request's headers, for the next request, and for a client that
//! does not read the response.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep, sleep};

use super::layers;

/// How long a client may take.
#[derive(Clone, Copy)]
pub(crate) struct IoTimeouts {
    /// For the headers of a request.
    pub(crate) header: Duration,
    /// Between two requests, or without reading a byte of a response.
    pub(crate) idle: Duration,
}

/// How much is still read from a client after its connection was closed on our side, and for how long.
const LINGER_BYTES: usize = 8 << 20;
const LINGER_TIME: Duration = Duration::from_secs(1);
/// How long a client that has begun to send headers is not taken for idle.
const HEADERS_GRACE: Duration = Duration::from_secs(1);

/// The start of every HTTP/2 connection.
const HTTP2: &[u8] = b"PRI ";

/// The phase of a connection, shared by the byte stream below the HTTP library and its requests.
#[derive(Clone)]
pub(crate) struct ConnectionActivity(Arc<Mutex<Phase>>);

struct Phase {
    in_flight: usize,
    /// Whether the client is sending a request's headers, as far as the bytes tell.
    in_headers: bool,
    since: Instant,
    makes_room: bool,
}

impl ConnectionActivity {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Since when the connection is idle. One whose client begins a request is not, one that is new gets
    /// a moment to begin, and one that is being closed does not count.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let phase = self.phase();
        let begins = phase.in_headers && phase.since.elapsed() < HEADERS_GRACE;
        (phase.in_flight == 0 && !begins && !phase.makes_room).then_some(phase.since)
    }

    /// Marks the connection as one that is closed for another: nothing more is read from it.
    pub(super) fn make_room(&self) {
        self.phase().makes_room = true;
    }

    /// Marks a request as in flight until the guard is dropped.
    pub(crate) fn begin_request(&self) -> InFlightGuard {
        self.phase().in_flight += 1;
        InFlightGuard(self.clone())
    }
}

pub(crate) struct InFlightGuard(ConnectionActivity);

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut phase = self.0.phase();
        phase.in_flight -= 1;
        phase.in_headers = false;
        phase.since = Instant::now();
    }
}

/// A byte stream that fails when its client takes too long. It has the connection's place among the
/// allowed ones, so that a tunnel, which outlives the HTTP library's connection, keeps it.
pub(super) struct TimedStream<S> {
    stream: S,
    place: OwnedSemaphorePermit,
    activity: ConnectionActivity,
    timeouts: IoTimeouts,
    http2: Option<bool>,
    /// Bytes that were read to recognise HTTP/2, and not handed on yet.
    peeked: Vec<u8>,
    reading: Pin<Box<Sleep>>,
    writing: Pin<Box<Sleep>>,
    stalled: bool,
    /// How many bytes are still read after our end was closed; `None` before that.
    linger: Option<usize>,
}

impl<S> TimedStream<S> {
    pub(super) fn new(
        stream: S,
        place: OwnedSemaphorePermit,
        timeouts: IoTimeouts,
    ) -> (Self, ConnectionActivity) {
        // A new connection begins with the headers of a request.
        let (in_flight, in_headers, makes_room) = (0, true, false);
        let phase = Phase { in_flight, in_headers, since: Instant::now(), makes_room };
        let activity = ConnectionActivity(Arc::new(Mutex::new(phase)));
        let timed = Self {
            stream,
            place,
            activity: activity.clone(),
            timeouts,
            http2: None,
            peeked: Vec::new(),
            reading: Box::pin(sleep(timeouts.header)),
            writing: Box::pin(sleep(timeouts.idle)),
            stalled: false,
            linger: None,
        };
        (timed, activity)
    }

    pub(super) fn into_parts(self) -> (S, OwnedSemaphorePermit) {
        (self.stream, self.place)
    }

    /// The moment after which the client is too slow; `None` while a request is in flight.
    fn deadline(&self) -> Option<Instant> {
        let phase = self.activity.phase();
        // In HTTP/2, received bytes need not belong to a request: the header timeout does not apply.
        let in_headers = phase.in_headers && self.http2 != Some(true);
        let limit = if in_headers { self.timeouts.header } else { self.timeouts.idle };
        (phase.in_flight == 0).then(|| phase.since + limit)
    }

    /// Schedules another poll before the client can have been idle for too long: the HTTP library
    /// polls for the next request while it still answers this one, and not again after that.
    fn schedule_poll(&mut self, cx: &mut Context<'_>) {
        let latest = Instant::now() + self.timeouts.idle;
        if self.reading.is_elapsed() || self.reading.deadline() > latest {
            self.reading.as_mut().reset(latest);
        }
        if self.reading.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
    }

    /// The problem document that replaces a response of the HTTP library to a request which reached no
    /// handler. Nothing else is written while the headers of a request are being read.
    fn explained_refusal(&self, response: &[u8]) -> Option<&'static [u8]> {
        let document = layers::instead_of(response)?;
        let phase = self.activity.phase();
        (phase.in_headers && phase.in_flight == 0).then_some(document)
    }

    fn note_read(&mut self, bytes: &[u8]) {
        let first = self.http2.is_none();
        self.http2.get_or_insert_with(|| bytes.starts_with(HTTP2));
        let mut phase = self.activity.phase();
        if phase.in_flight == 0 && (first || !phase.in_headers) {
            phase.in_headers = true;
            phase.since = Instant::now();
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TimedStream<S> {
    /// Reads until it is clear whether the client begins with HTTP/2.
    pub(super) async fn begins_http2(&mut self) -> io::Result<bool> {
        let mut peeked = Vec::with_capacity(HTTP2.len());
        while peeked.len() < HTTP2.len() && HTTP2.starts_with(&peeked) {
            let (mut bytes, missing) = ([0; HTTP2.len()], HTTP2.len() - peeked.len());
            match self.read(&mut bytes[..missing]).await? {
                0 => break,
                n => peeked.extend_from_slice(&bytes[..n]),
            }
        }
        let http2 = peeked == HTTP2;
        self.http2 = Some(http2);
        self.peeked = peeked;
        Ok(http2)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.peeked.is_empty() {
            let most = self.peeked.len().min(buf.remaining());
            buf.put_slice(&self.peeked[..most]);
            self.peeked.drain(..most);
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        if let Poll::Ready(done) = Pin::new(&mut self.stream).poll_read(cx, buf) {
            if buf.filled().len() > before {
                self.note_read(&buf.filled()[before..]);
            }
            return Poll::Ready(done);
        }
        let Some(deadline) = self.deadline() else {
            self.schedule_poll(cx);
            return Poll::Pending;
        };
        // The deadline moves with every request, and moving a timer takes a lock: one that fires too early is set again.
        while Instant::now() < deadline {
            if self.reading.is_elapsed() || self.reading.deadline() > deadline {
                self.reading.as_mut().reset(deadline);
            }
            ready!(self.reading.as_mut().poll(cx));
        }
        let in_headers = self.activity.phase().in_headers;
        if self.http2 == Some(false) && in_headers {
            self.refuse(cx, &layers::TOO_SLOW);
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(document) = self.explained_refusal(buf) {
            self.refuse(cx, document);
            return Poll::Ready(Ok(buf.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_stall(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // A refusal is a head alone.
        if let [head] = bufs
            && let Some(document) = self.explained_refusal(head)
        {
            self.refuse(cx, document);
            return Poll::Ready(Ok(head.len()));
        }
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_stall(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Closes our end, and then reads on for a moment: closing a socket with unread bytes would reset
    /// the connection, and a client that is still sending would not see the response. A request in
    /// flight is a tunnel here, whose other direction goes on.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            let phase = self.activity.phase();
            let no_request_is_refused = phase.in_flight > 0 || phase.makes_room;
            drop(phase);
            if self.http2 == Some(true) || no_request_is_refused {
                return Poll::Ready(Ok(()));
            }
            self.linger = Some(LINGER_BYTES);
            self.reading.as_mut().reset(Instant::now() + LINGER_TIME);
        }
        self.poll_linger(cx).map(Ok)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TimedStream<S> {
    /// Reads and drops what still comes, until the client closes too or the bounds are reached.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while let Some(left) = self.linger.filter(|left| *left > 0) {
            let mut scratch = [0; 8192];
            let mut scratch = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut scratch) {
                Poll::Ready(Ok(())) if !scratch.filled().is_empty() => {
                    self.linger = Some(left.saturating_sub(scratch.filled().len()));
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return self.reading.as_mut().poll(cx),
            }
        }
        Poll::Ready(())
    }

    /// Writes a refusal. Nothing else is being written while a request is awaited; if the buffer is
    /// full all the same, the client does not read and misses nothing.
    fn refuse(&mut self, cx: &mut Context<'_>, document: &[u8]) {
        let _ = Pin::new(&mut self.stream).poll_write(cx, document);
    }

    fn check_stall(
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
            self.writing.as_mut().reset(Instant::now() + self.timeouts.idle);
        }
        ready!(self.writing.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}
