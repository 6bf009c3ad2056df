//! Bodies of requests and responses on both sides of the layer.

pub(crate) mod channel;
pub(crate) mod reader;

use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use pin_project_lite::pin_project;

use crate::{Problem, ProblemKind};
use channel::BodyReceiver;

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A body that is completely in memory: its bytes, and its trailers where it has some.
#[derive(Clone, Debug, Default)]
pub struct FullBody {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl FullBody {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers }
    }

    /// Reads a keyed request's body, up to `max` bytes.
    pub(crate) async fn read<B>(body: B, max: usize) -> Result<Self, Problem>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<BoxError>,
    {
        let too_large = || {
            Problem::new(
                ProblemKind::PayloadTooLarge,
                format!("a request with an Idempotency-Key may have at most {max} bytes"),
            )
        };
        if body.size_hint().lower() > max as u64 {
            return Err(too_large());
        }
        match pin!(Limited::new(body, max)).collect().await {
            Ok(body) => {
                let trailers = body.trailers().cloned();
                Ok(Self::new(body.to_bytes(), trailers))
            }
            // The exceeded limit may also be that of a body limit outside the layer.
            Err(error) if is_length_limit(&*error) => Err(too_large()),
            Err(_) => {
                Err(Problem::invalid("the request body ended early; nothing was run").retryable())
            }
        }
    }

    /// The bytes that were not sent yet.
    pub fn bytes(&self) -> &Bytes {
        &self.data
    }

    pub(crate) fn trailers(&self) -> Option<&HeaderMap> {
        self.trailers.as_ref()
    }

    fn next(&mut self) -> Option<Frame<Bytes>> {
        if !self.data.is_empty() {
            return Some(Frame::data(std::mem::take(&mut self.data)));
        }
        self.trailers.take().map(Frame::trailers)
    }
}

fn is_length_limit(error: &(dyn StdError + 'static)) -> bool {
    error.is::<LengthLimitError>() || error.source().is_some_and(is_length_limit)
}

impl From<Bytes> for FullBody {
    fn from(data: Bytes) -> Self {
        Self::new(data, None)
    }
}

impl HttpBody for FullBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.get_mut().next().map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.data.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let length = self.data.len() as u64;
        if self.trailers.is_none() {
            return SizeHint::with_exact(length);
        }
        // HTTP/1.1 sends trailers only with a body of unknown length.
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

/// The body of a request behind the layer: passed through, or read completely because the request
/// has a key.
pub type RequestBody<B> = LayerBody<B>;

/// The body of a response in front of the layer: passed through; complete (a replay, a problem, a
/// response that was ready at once); or streamed while a copy is captured.
pub type ResponseBody<R> = LayerBody<R>;

pin_project! {
    /// A body that the layer passes through, has in memory, or streams.
    #[derive(Debug)]
    pub struct LayerBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProjection]
    #[derive(Debug)]
    enum Inner<B> {
        PassedThrough { #[pin] body: B },
        Full { body: FullBody },
        Streamed { body: BodyReceiver },
    }
}

impl<B> LayerBody<B> {
    pub(crate) fn passed_through(body: B) -> Self {
        Self { inner: Inner::PassedThrough { body } }
    }

    pub(crate) fn full(body: FullBody) -> Self {
        Self { inner: Inner::Full { body } }
    }

    pub(crate) fn streamed(body: BodyReceiver) -> Self {
        Self { inner: Inner::Streamed { body } }
    }
}

impl<B> HttpBody for LayerBody<B>
where
    B: HttpBody<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().inner.project() {
            InnerProjection::PassedThrough { body } => body.poll_frame(cx).map_err(Into::into),
            InnerProjection::Full { body } => Poll::Ready(body.next().map(Ok)),
            InnerProjection::Streamed { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::PassedThrough { body } => body.is_end_stream(),
            Inner::Full { body } => body.is_end_stream(),
            Inner::Streamed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::PassedThrough { body } => body.size_hint(),
            Inner::Full { body } => body.size_hint(),
            Inner::Streamed { body } => body.size_hint(),
        }
    }
}
