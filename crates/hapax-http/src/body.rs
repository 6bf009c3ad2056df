use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body as HttpBody, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::feed::Live;

/// Any error of a body.
pub type BoxError = Box<dyn StdError + Send + Sync>;

/// A body that is there as a whole: its bytes, and its trailers where it has some.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    data: Bytes,
    trailers: Option<HeaderMap>,
}

impl Whole {
    pub(crate) fn new(data: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self { data, trailers }
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

impl From<Bytes> for Whole {
    fn from(data: Bytes) -> Self {
        Self::new(data, None)
    }
}

impl HttpBody for Whole {
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
        // HTTP/1.1 sends trailers only with a body whose length it does not know.
        let mut hint = SizeHint::new();
        hint.set_lower(length);
        hint
    }
}

pin_project! {
    /// The body of a request behind the layer: as it came, or read whole because it has a key.
    #[derive(Debug)]
    pub struct Body<B> {
        #[pin]
        kind: Request<B>,
    }
}

pin_project! {
    #[project = RequestKind]
    #[derive(Debug)]
    enum Request<B> {
        Through { #[pin] body: B },
        Whole { body: Whole },
    }
}

impl<B> Body<B> {
    pub(crate) fn through(body: B) -> Self {
        Self { kind: Request::Through { body } }
    }

    pub(crate) fn whole(body: Whole) -> Self {
        Self { kind: Request::Whole { body } }
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().kind.project() {
            RequestKind::Through { body } => body.poll_frame(cx).map_err(Into::into),
            RequestKind::Whole { body } => Poll::Ready(body.next().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Request::Through { body } => body.is_end_stream(),
            Request::Whole { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Request::Through { body } => body.size_hint(),
            Request::Whole { body } => body.size_hint(),
        }
    }
}

pin_project! {
    /// The body of an answer in front of the layer: as the service made it, there as a whole (a
    /// replay, a problem, an answer that was ready at once), or on its way while a copy is kept.
    #[derive(Debug)]
    pub struct Answer<R> {
        #[pin]
        kind: Kind<R>,
    }
}

pin_project! {
    #[project = AnswerKind]
    #[derive(Debug)]
    enum Kind<R> {
        Through { #[pin] body: R },
        Whole { body: Whole },
        Live { body: Live },
    }
}

impl<R> Answer<R> {
    pub(crate) fn through(body: R) -> Self {
        Self { kind: Kind::Through { body } }
    }

    pub(crate) fn whole(body: Whole) -> Self {
        Self { kind: Kind::Whole { body } }
    }

    pub(crate) fn live(body: Live) -> Self {
        Self { kind: Kind::Live { body } }
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.project().kind.project() {
            AnswerKind::Through { body } => body.poll_frame(cx).map_err(Into::into),
            AnswerKind::Whole { body } => Poll::Ready(body.next().map(Ok)),
            AnswerKind::Live { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Through { body } => body.is_end_stream(),
            Kind::Whole { body } => body.is_end_stream(),
            Kind::Live { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Through { body } => body.size_hint(),
            Kind::Whole { body } => body.size_hint(),
            Kind::Live { body } => body.size_hint(),
        }
    }
}
