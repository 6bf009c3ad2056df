//! The body of the upstream's response.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout_at};

use super::BoxError;
use super::idle_timeout::IdleTimeoutBody;

/// Small responses are buffered for a moment, so that one that is cut can become a clean 502.
const MAX_BUFFERED: u64 = 64 * 1024;
const BUFFER_TIMEOUT: Duration = Duration::from_millis(100);

/// The body of a response: buffered frames, then those that will come.
pub(crate) struct UpstreamBody {
    buffered: VecDeque<Frame<Bytes>>,
    rest: Option<IdleTimeoutBody<Incoming>>,
}

impl UpstreamBody {
    pub(crate) fn streamed(body: IdleTimeoutBody<Incoming>) -> Self {
        Self { buffered: VecDeque::new(), rest: Some(body) }
    }

    pub(crate) fn full(body: Bytes) -> Self {
        let buffered = if body.is_empty() { VecDeque::new() } else { [Frame::data(body)].into() };
        Self { buffered, rest: None }
    }

    /// Buffers a small response, as far as it arrives in time; leaves any other one streamed.
    pub(crate) async fn buffer_if_small(mut self) -> Result<Self, BoxError> {
        let Some(mut rest) = self.rest.take() else { return Ok(self) };
        let small = rest.size_hint().exact().is_some_and(|length| length <= MAX_BUFFERED);
        let deadline = Instant::now() + BUFFER_TIMEOUT;
        while small && !rest.is_end_stream() {
            match timeout_at(deadline, rest.frame()).await {
                Ok(Some(frame)) => self.buffered.push_back(frame?),
                Ok(None) => break,
                Err(_) => return Ok(Self { rest: Some(rest), ..self }),
            }
        }
        let rest = (!small).then_some(rest);
        Ok(Self { rest, ..self })
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.buffered.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.buffered.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let lengths = self.buffered.iter().filter_map(|frame| frame.data_ref()).map(Bytes::len);
        let buffered = lengths.sum::<usize>() as u64;
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(buffered + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(buffered + upper);
        }
        hint
    }
}
