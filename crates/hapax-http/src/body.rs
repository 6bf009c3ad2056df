use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::{Semaphore, mpsc};

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// The body of a request behind the layer: as it came, or read whole because it has a key.
#[derive(Debug)]
pub enum Body<B> {
    /// As it came.
    Through(Pin<Box<B>>),
    /// Read whole.
    Whole(Full<Bytes>),
}

impl<B> Body<B> {
    pub(crate) fn through(body: B) -> Self {
        Self::Through(Box::pin(body))
    }
}

impl<B> HttpBody for Body<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Through(body) => body.as_mut().poll_frame(cx).map_err(Into::into),
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Through(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Through(body) => body.size_hint(),
            Self::Whole(body) => body.size_hint(),
        }
    }
}

/// The body of an answer in front of the layer.
#[derive(Debug)]
pub enum Answer<R> {
    /// As the service made it.
    Through(Pin<Box<R>>),
    /// There as a whole: a replay, a problem, or an answer that was ready at once.
    Whole(Full<Bytes>),
    /// On its way, while a copy is kept.
    Live(Live),
}

impl<R> Answer<R> {
    pub(crate) fn through(body: R) -> Self {
        Self::Through(Box::pin(body))
    }

    pub(crate) fn whole(body: Bytes) -> Self {
        Self::Whole(Full::new(body))
    }
}

impl<R> HttpBody for Answer<R>
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut *self {
            Self::Through(body) => body.as_mut().poll_frame(cx).map_err(Into::into),
            Self::Whole(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Live(live) => live.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Through(body) => body.is_end_stream(),
            Self::Whole(body) => body.is_end_stream(),
            Self::Live(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Through(body) => body.size_hint(),
            Self::Whole(body) => body.size_hint(),
            Self::Live(live) => live.length.map_or_else(SizeHint::default, SizeHint::with_exact),
        }
    }
}

/// Opens a way for frames to the client, on which at most `room` bytes wait.
pub(crate) fn live(room: usize, length: Option<u64>) -> (Feed, Live) {
    let (sender, frames) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(room));
    (Feed { sender, room: room.clone() }, Live { frames, room, length })
}

/// The client's end.
#[derive(Debug)]
pub struct Live {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>,
    room: Arc<Semaphore>,
    length: Option<u64>,
}

impl Live {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(self.frames.poll_recv(cx));
        if let Some(Ok(frame)) = &frame {
            self.room.add_permits(weight(frame));
        }
        Poll::Ready(frame)
    }
}

impl Drop for Live {
    /// Whoever waits for room hears that nobody reads any more.
    fn drop(&mut self) {
        self.room.close();
    }
}

/// The service's end.
#[derive(Debug)]
pub(crate) struct Feed {
    sender: mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>,
    room: Arc<Semaphore>,
}

impl Feed {
    /// Sends a frame as soon as there is room for it. Where the client went away it goes nowhere.
    pub(crate) async fn send(&self, frame: Frame<Bytes>) {
        let weight = u32::try_from(weight(&frame)).unwrap_or(u32::MAX);
        if let Ok(permits) = self.room.acquire_many(weight).await {
            permits.forget();
            let _ = self.sender.send(Ok(frame));
        }
    }

    /// Ends the answer with an error, so that nobody takes it for whole.
    pub(crate) fn cut(self, error: BoxError) {
        let _ = self.sender.send(Err(error));
    }
}

fn weight(frame: &Frame<Bytes>) -> usize {
    frame.data_ref().map_or(0, Buf::remaining)
}
