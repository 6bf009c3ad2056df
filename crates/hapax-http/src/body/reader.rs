//! Reads the service's response, and captures a copy of it. A body that ends before its announced
//! length is an error.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body::Body as HttpBody;

use crate::BoxError;

/// The length that the client is told, where it is told one: it knows the end by the last byte then.
pub(crate) fn announced_length<R: HttpBody>(headers: &HeaderMap, body: &R) -> Option<u64> {
    let written = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    body.size_hint().exact().or_else(written)
}

pub(crate) struct BodyReader<'a, R> {
    body: Pin<&'a mut R>,
    length: Option<u64>,
    seen: u64,
    ended: bool,
    trailers: Option<HeaderMap>,
}

impl<'a, R> BodyReader<'a, R>
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    pub(crate) fn new(body: Pin<&'a mut R>, length: Option<u64>) -> Self {
        Self { body, length, seen: 0, ended: false, trailers: None }
    }

    /// Whether as many bytes have come as were announced.
    pub(crate) fn is_complete(&self) -> bool {
        self.length == Some(self.seen)
    }

    pub(crate) fn into_trailers(self) -> Option<HeaderMap> {
        self.trailers
    }

    /// The next data, `None` at the end. A complete body ends at once, even if it does not say so.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next data, or `None` where there is none yet.
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
                        return Poll::Ready(Err("the response exceeds its length".into()));
                    }
                    return Poll::Ready(Ok(Some(data)));
                }
            }
        }
        self.ended = true;
        if self.length.is_some_and(|length| self.seen < length) {
            return Poll::Ready(Err("the response is shorter than its length".into()));
        }
        Poll::Ready(Ok(None))
    }
}

/// The copy of a response, up to a maximal size.
pub(crate) struct CapturedBody {
    chunks: Vec<Bytes>,
    room: Option<usize>,
}

impl CapturedBody {
    pub(crate) fn new(max: usize) -> Self {
        Self { chunks: Vec::new(), room: Some(max) }
    }

    /// The copy of a response that is known to be too large.
    pub(crate) fn too_large() -> Self {
        Self { chunks: Vec::new(), room: None }
    }

    pub(crate) fn fits(&self) -> bool {
        self.room.is_some()
    }

    /// Adds data. Nothing is added after the first chunk that does not fit.
    pub(crate) fn add(&mut self, data: &Bytes) {
        if let Some(room) = self.room {
            self.chunks.push(data.clone());
            self.room = room.checked_sub(data.len());
        }
    }

    /// Everything that was added, with the first chunk that did not fit.
    pub(crate) fn chunks(&self) -> Vec<Bytes> {
        self.chunks.clone()
    }

    /// Frees the memory of a copy that will not be stored.
    pub(crate) fn clear(&mut self) {
        self.chunks = Vec::new();
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        // A response is mostly one chunk: do not copy it.
        if let [one] = &self.chunks[..] {
            return one.clone();
        }
        let mut bytes = BytesMut::with_capacity(self.chunks.iter().map(Bytes::len).sum());
        self.chunks.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
        bytes.freeze()
    }
}
