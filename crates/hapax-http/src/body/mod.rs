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

pin_project! {
    /// The body of a request behind the layer: passed through, or read completely because the
    /// request has a key.
    #[derive(Debug)]
    pub struct RequestBody<B> {
        #[pin]
        inner: RequestInner<B>,
    }
}

pin_project! {
    #[project = RequestProjection]
    #[derive(Debug)]
    enum RequestInner<B> {
        PassedThrough { #[pin] body: B },
        Full { body: FullBody },
    }
}

impl<B> RequestBody<B> {
    pub(crate) fn passed_through(body: B) -> Self {
        Self { inner: RequestInner::PassedThrough { body } }
    }

    pub(crate) fn full(body: FullBody) -> Self {
        Self { inner: RequestInner::Full { body } }
    }
}

impl<B> HttpBody for RequestBody<B>
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
            RequestProjection::PassedThrough { body } => body.poll_frame(cx).map_err(Into::into),
            RequestProjection::Full { body } => Poll::Ready(body.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            RequestInner::PassedThrough { body } => body.is_end_stream(),
            RequestInner::Full { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            RequestInner::PassedThrough { body } => body.size_hint(),
            RequestInner::Full { body } => body.size_hint(),
        }
    }
}

pin_project! {
    /// The body of a response in front of the layer: passed through; complete (a replay, a
    /// problem, a response that was ready at once); or streamed while a copy is captured.
    #[derive(Debug)]
    pub struct ResponseBody<R> {
        #[pin]
        inner: ResponseInner<R>,
    }
}

pin_project! {
    #[project = ResponseProjection]
    #[derive(Debug)]
    enum ResponseInner<R> {
        PassedThrough { #[pin] body: R },
        Full { body: FullBody },
        Streamed { body: BodyReceiver },
    }
}

impl<R> ResponseBody<R> {
    pub(crate) fn passed_through(body: R) -> Self {
        Self { inner: ResponseInner::PassedThrough { body } }
    }

    pub(crate) fn full(body: FullBody) -> Self {
        Self { inner: ResponseInner::Full { body } }
    }

    pub(crate) fn streamed(body: BodyReceiver) -> Self {
        Self { inner: ResponseInner::Streamed { body } }
    }
}

impl<R> HttpBody for ResponseBody<R>
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().inner.project() {
            ResponseProjection::PassedThrough { body } => body.poll_frame(cx).map_err(Into::into),
            ResponseProjection::Full { body } => Poll::Ready(body.next().map(Ok)),
            ResponseProjection::Streamed { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            ResponseInner::PassedThrough { body } => body.is_end_stream(),
            ResponseInner::Full { body } => body.is_end_stream(),
            ResponseInner::Streamed { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            ResponseInner::PassedThrough { body } => body.size_hint(),
            ResponseInner::Full { body } => body.size_hint(),
            ResponseInner::Streamed { body } => body.size_hint(),
        }
    }
}
