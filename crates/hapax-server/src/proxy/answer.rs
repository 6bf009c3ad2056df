//! The upstream's answer on its way back.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout_at};

use super::BoxError;
use super::quiet::Quiet;

/// Answers up to this size are taken whole where they come whole within a moment: one that is cut
/// can then still become a clean 502.
const SMALL: u64 = 64 * 1024;
const MOMENT: Duration = Duration::from_millis(100);

/// The body of an answer: frames that are there, then those that will come.
pub(crate) struct Arriving {
    ready: VecDeque<Frame<Bytes>>,
    rest: Option<Quiet<Incoming>>,
}

impl Arriving {
    /// As it comes.
    pub(crate) fn live(body: Quiet<Incoming>) -> Self {
        Self { ready: VecDeque::new(), rest: Some(body) }
    }

    /// Something that is there as a whole.
    pub(crate) fn whole(body: Bytes) -> Self {
        let ready = if body.is_empty() { VecDeque::new() } else { [Frame::data(body)].into() };
        Self { ready, rest: None }
    }

    /// Takes a small answer whole, if it comes within a moment; any other one as it comes.
    pub(crate) async fn settle(mut self) -> Result<Self, BoxError> {
        let Some(mut rest) = self.rest.take() else { return Ok(self) };
        let small = rest.size_hint().exact().is_some_and(|length| length <= SMALL);
        let deadline = Instant::now() + MOMENT;
        while small && !rest.is_end_stream() {
            match timeout_at(deadline, rest.frame()).await {
                Ok(Some(frame)) => self.ready.push_back(frame?),
                Ok(None) => break,
                Err(_) => return Ok(Self { rest: Some(rest), ..self }),
            }
        }
        let rest = (!small).then_some(rest);
        Ok(Self { rest, ..self })
    }

    fn ready_bytes(&self) -> u64 {
        self.ready.iter().filter_map(|frame| frame.data_ref()).map(|data| data.len() as u64).sum()
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(frame) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        match &mut self.rest {
            Some(rest) => Pin::new(rest).poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ready.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let ready = self.ready_bytes();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(ready + rest.lower());
        if let Some(upper) = rest.upper() {
            hint.set_upper(ready + upper);
        }
        hint
    }
}
