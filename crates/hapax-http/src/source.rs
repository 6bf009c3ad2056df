//! Reading the service's answer: data, then its end, which is one only where everything that was
//! announced has come.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body as HttpBody;

use crate::BoxError;

/// How long the client will take the answer to be, where it is told so: it knows the end by the
/// last byte then.
pub(crate) fn announced<R: HttpBody>(headers: &HeaderMap, body: &R) -> Option<u64> {
    let written = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    body.size_hint().exact().or_else(written)
}

pub(crate) struct Source<'a, R> {
    body: Pin<&'a mut R>,
    length: Option<u64>,
    seen: u64,
    ended: bool,
    trailers: Option<HeaderMap>,
}

impl<'a, R> Source<'a, R>
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    pub(crate) fn new(body: Pin<&'a mut R>, length: Option<u64>) -> Self {
        Self { body, length, seen: 0, ended: false, trailers: None }
    }

    /// Whether the last of what was announced has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.length == Some(self.seen)
    }

    pub(crate) fn into_trailers(self) -> Option<HeaderMap> {
        self.trailers
    }

    /// The next data, `None` at the end. What is complete ends at once, without waiting for a body
    /// that does not say so.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next data if it is there.
    pub(crate) async fn next_if_ready(&mut self) -> Option<Result<Option<Bytes>, BoxError>> {
        poll_fn(|cx| match self.poll_next(cx) {
            Poll::Ready(next) => Poll::Ready(Some(next)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, BoxError>> {
        while !self.ended && !self.body.is_end_stream() {
            let frame = match self.body.as_mut().poll_frame(cx) {
                Poll::Pending if self.is_complete() => break,
                polled => ready!(polled),
            };
            match frame.transpose().map_err(Into::into)?.map(http_body::Frame::into_data) {
                None => break,
                Some(Err(frame)) => {
                    self.trailers = frame.into_trailers().ok();
                    break;
                }
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.seen += data.len() as u64;
                    if self.length.is_some_and(|length| self.seen > length) {
                        return Poll::Ready(Err("the answer is longer than it said".into()));
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
            }
        }
        self.ended = true;
        if self.length.is_some_and(|length| self.seen < length) {
            return Poll::Ready(Err("the answer is shorter than it said".into()));
        }
        Poll::Ready(Ok(None))
    }
}

/// The copy of an answer, up to the limit.
pub(crate) struct Copy {
    chunks: Vec<Bytes>,
    room: Option<usize>,
}

impl Copy {
    pub(crate) fn new(limit: usize) -> Self {
        Self { chunks: Vec::new(), room: Some(limit) }
    }

    /// The copy of an answer that is known not to fit.
    pub(crate) fn none() -> Self {
        Self { chunks: Vec::new(), room: None }
    }

    pub(crate) fn fits(&self) -> bool {
        self.room.is_some()
    }

    /// Adds data; what comes after the first that does not fit is not added any more.
    pub(crate) fn add(&mut self, data: &Bytes) {
        if let Some(room) = self.room {
            self.chunks.push(data.clone());
            self.room = room.checked_sub(data.len());
        }
    }

    /// Everything up to here, the first data that did not fit included.
    pub(crate) fn chunks(&self) -> Vec<Bytes> {
        self.chunks.clone()
    }

    /// Gives the memory back of what will not be kept.
    pub(crate) fn forget(&mut self) {
        self.chunks = Vec::new();
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        // Mostly it is one: that is not copied.
        if let [one] = &self.chunks[..] {
            return one.clone();
        }
        let mut whole = BytesMut::with_capacity(self.chunks.iter().map(Bytes::len).sum());
        self.chunks.iter().for_each(|chunk| whole.extend_from_slice(chunk));
        whole.freeze()
    }
}
