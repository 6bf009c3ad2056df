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
use super::stream::{BodyFraming, EventStream, FrameSink, StreamEnd};
use crate::daemon::Takeover;

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
            let Some(mut stream) = take_stream(&this.pending) else { return Poll::Ready(None) };
            let (pieces, receiver) = mpsc::channel(BODY_CHANNEL_CAPACITY);
            let mut sink = BodySink { pieces, write_timeout: stream.timings.write_timeout };
            tokio::spawn(async move {
                let ended = stream.run(&mut sink).await;
                stream.count_end(ended);
            });
            this.pieces = Some(receiver);
        }
        let Some(pieces) = &mut this.pieces else { return Poll::Ready(None) };
        pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

struct BodySink {
    pieces: mpsc::Sender<Bytes>,
    write_timeout: Duration,
}

impl FrameSink for BodySink {
    const FRAMING: BodyFraming = BodyFraming::Plain;
    const CAN_JOIN_FANOUT: bool = false;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), StreamEnd> {
        for piece in pieces.drain(..) {
            let sent = timeout(self.write_timeout, self.pieces.send(piece)).await;
            sent.map_err(|_| StreamEnd::Slow)?.map_err(|_| StreamEnd::Client)?;
        }
        Ok(())
    }

    async fn disconnected(&mut self) {
        self.pieces.closed().await;
    }
}
