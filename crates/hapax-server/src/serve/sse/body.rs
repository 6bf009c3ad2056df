//! A stream as the body of an ordinary response: HTTP/2, HTTP/1.0, and the API in process.

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

use super::fanout::Crowds;
use super::socket::Socket;
use super::source::Framing;
use super::stream::{Ended, Outlet, Stream};
use crate::net::{InFlight, Takeover};

/// How many pieces may wait for the HTTP library.
const WAITING: usize = 4;

/// The stream until somebody begins to send it: the body, or whoever takes the connection over.
type Waiting = Arc<Mutex<Option<Stream>>>;

fn take(waiting: &Waiting) -> Option<Stream> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Makes the stream the body of the response, or what goes on with its connection.
pub(super) fn attach(response: Response, stream: Stream, crowds: Arc<Crowds>) -> Response {
    let waiting = Waiting::new(Mutex::new(Some(stream)));
    let taken = waiting.clone();
    let takeover = Takeover::new(move |bare, head| async move {
        if let Some(stream) = take(&taken) {
            Socket::new(bare, stream.rules.write).send(vec![head], stream, crowds).await;
        }
    });
    let mut response = response.map(|_| Body::new(StreamBody { waiting, pieces: None }));
    response.extensions_mut().insert(takeover);
    response
}

struct StreamBody {
    waiting: Waiting,
    pieces: Option<mpsc::Receiver<Bytes>>,
}

impl hyper::body::Body for StreamBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Begins with the first question: who asks for the headers alone gets nothing else.
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.pieces.is_none() {
            let Some(stream) = take(&this.waiting) else { return Poll::Ready(None) };
            let (pieces, receiver) = mpsc::channel(WAITING);
            let mut channel = Channel::new(pieces, stream.rules.write);
            tokio::spawn(async move {
                let mut stream = stream;
                let ended = stream.run(&mut channel).await;
                stream.ended(ended);
            });
            this.pieces = Some(receiver);
        }
        let Some(pieces) = &mut this.pieces else { return Poll::Ready(None) };
        pieces.poll_recv(context).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

/// The HTTP library, which takes a piece when it has room.
pub(super) struct Channel {
    pieces: mpsc::Sender<Bytes>,
    limit: Duration,
}

impl Channel {
    pub(super) fn new(pieces: mpsc::Sender<Bytes>, limit: Duration) -> Self {
        Self { pieces, limit }
    }
}

impl Outlet for Channel {
    const FRAMING: Framing = Framing::Plain;
    const MAY_IDLE: bool = false;

    async fn write(&mut self, pieces: &mut Vec<Bytes>) -> Result<(), Ended> {
        for piece in pieces.drain(..) {
            match timeout(self.limit, self.pieces.send(piece)).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Ended::Client),
                Err(_) => return Err(Ended::Slow),
            }
        }
        Ok(())
    }

    async fn gone(&mut self) {
        self.pieces.closed().await;
    }
}

/// Where the response is a stream, its request is being answered for as long as it lasts: a client
/// that listens is not one that is idle.
pub(crate) fn lasting(response: Response, in_flight: InFlight) -> Response {
    if response.extensions().get::<Takeover>().is_none() {
        return response;
    }
    response.map(|body| Body::new(Lasting { body, _in_flight: in_flight }))
}

struct Lasting {
    body: Body,
    _in_flight: InFlight,
}

impl hyper::body::Body for Lasting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}
