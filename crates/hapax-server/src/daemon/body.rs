//! Request bodies that are read within bounds of size and time, and bodies that keep a guard.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use hapax_http::{MemoryBudget, ReservedBuffer, ReservedMemory};
use http_body_util::BodyExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::problem::{Problem, ProblemKind};

/// Reads a complete body of at most `limit` bytes `within` this time, and within the memory of all
/// bodies.
pub(crate) async fn read(
    mut body: Body,
    limit: usize,
    within: Duration,
    budget: &MemoryBudget,
) -> Result<(Bytes, ReservedMemory), Problem> {
    let too_large = || {
        let text = format!("the body may have at most {limit} bytes");
        Problem::new(ProblemKind::PayloadTooLarge, text)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let deadline = Instant::now() + within;
    let mut read = ReservedBuffer::new(budget, limit);
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => {
                let text = "the body did not arrive in time";
                return Err(Problem::new(ProblemKind::RequestTimeout, text));
            }
            Ok(Some(Err(_))) => return Err(Problem::invalid("the body ended too early")),
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => return Ok(read.into_parts()),
        };
        let Ok(data) = frame.into_data() else { continue };
        if read.len() + data.len() > limit {
            return Err(too_large());
        }
        read.append(&data)?;
    }
}

/// A body that drops its guard with its last byte, or when the client is gone.
pub(crate) struct GuardedBody<B, G> {
    body: B,
    _guard: G,
}

impl<B, G> GuardedBody<B, G> {
    pub(crate) fn new(body: B, guard: G) -> Self {
        Self { body, _guard: guard }
    }
}

impl<B: HttpBody + Unpin, G: Unpin> HttpBody for GuardedBody<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
