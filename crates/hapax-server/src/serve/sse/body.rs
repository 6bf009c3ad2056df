//! An event stream as an ordinary response body: for HTTP/2, HTTP/1.0 and the in-process API.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::Frame;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::fanout::FanoutGroups;
use super::socket::SocketSink;
use super::source::BodyFraming;
use super::stream::{EventStream, FrameSink, StreamEnd};
use crate::daemon::{InFlightGuard, Takeover};

/// How many pieces may be queued for the HTTP library.
const BODY_CHANNEL_CAPACITY: usize = 4;

/// The stream until sending begins, by the body or by the takeover of the connection.
type PendingStream = Arc<Mutex<Option<EventStream>>>;

fn take_stream(pending: &PendingStream) -> Option<EventStream> {
    pending.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Attaches the stream to the response, both as its body and as a takeover of the connection.
pub(super) fn attach(
    response: Response,
    stream: EventStream,
    fanout: Arc<FanoutGroups>,
) -> Response {
    let pending = PendingStream::new(Mutex::new(Some(stream)));
    let for_takeover = pending.clone();
    let takeover = Takeover::new(move |socket, head| async move {
        if let Some(stream) = take_stream(&for_takeover) {
            SocketSink::new(socket, stream.timings.write_timeout)
                .run(vec![head], stream, fanout)
                .await;
        }
    });
    let mut response = response.map(|_| Body::new(EventStreamBody { pending, pieces: None }));
    response.extensions_mut().insert(takeover);
    response
}

struct EventStreamBody {
    pending: PendingStream,
    pieces: Option<mpsc::Receiver<Bytes>>,
}

impl hyper::body::Body for EventStreamBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Sending begins with the first poll, so that a HEAD request starts nothing.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.pieces.is_none() {
            let Some(stream) = take_stream(&this.pending) else { return Poll::Ready(None) };
            let (pieces, receiver) = mpsc::channel(BODY_CHANNEL_CAPACITY);
            let mut channel = BodySink::new(pieces, stream.timings.write_timeout);
            tokio::spawn(async move {
                let mut stream = stream;
                let ended = stream.run(&mut channel).await;
                stream.count_end(ended);
            });
            this.pieces = Some(receiver);
        }
        let Some(pieces) = &mut this.pieces else { return Poll::Ready(None) };
        pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// A sink that passes pieces to the HTTP library as a response body.
pub(super) struct BodySink {
    pieces: mpsc::Sender<Bytes>,
    write_timeout: Duration,
}

impl BodySink {
    pub(super) fn new(pieces: mpsc::Sender<Bytes>, write_timeout: Duration) -> Self {
        Self { pieces, write_timeout }
    }
}

impl FrameSink for BodySink {
    const FRAMING: BodyFraming = BodyFraming::Plain;
    const CAN_JOIN_FANOUT: bool = false;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), StreamEnd> {
        for piece in pieces.drain(..) {
            match timeout(self.write_timeout, self.pieces.send(piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StreamEnd::Client),
                Err(_) => return Err(StreamEnd::Slow),
            }
        }
        Ok(())
    }

    async fn disconnected(&mut self) {
        self.pieces.closed().await;
    }
}

/// Counts the request of an event stream as in flight until its body ends: a client that listens is
/// not idle.
pub(crate) fn keep_in_flight(response: Response, in_flight: InFlightGuard) -> Response {
    if response.extensions().get::<Takeover>().is_none() {
        return response;
    }
    response.map(|body| Body::new(InFlightBody { body, _in_flight: in_flight }))
}

struct InFlightBody {
    body: Body,
    _in_flight: InFlightGuard,
}

impl hyper::body::Body for InFlightBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}
