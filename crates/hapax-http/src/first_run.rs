//! The first request with a key: runs the service, captures its response and sends it on.
//!
//! The response streams to the client as it comes, while a copy is captured. Its last byte is sent only
//! after the store has the copy: a client that received the complete response can rely on getting it
//! again.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hapax_core::command::StoredResponse;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::response::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::body::{BodySender, open_channel};
use crate::claim_guard::ClaimGuard;
use crate::config::HeadVerdict;
use crate::replay::{add_trailers, capture, fits, tombstone};
use crate::service::call_in_trace;
use crate::{BoxError, FullBody, Problem, ProblemKind, RequestBody, ResponseBody, Verdict};

/// The smallest number of bytes that may wait for the client, however small `max_body` is.
const MIN_CHANNEL: usize = 64 * 1024;

pub(crate) struct FirstRun<R, E> {
    pub(crate) claim: ClaimGuard,
    pub(crate) reply: oneshot::Sender<Result<Response<ResponseBody<R>>, E>>,
}

impl<R, E> FirstRun<R, E>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    /// Runs the service. `ready` is whether it was polled ready already.
    pub(crate) async fn run<S, B>(
        self,
        mut service: S,
        ready: bool,
        request: Request<RequestBody<B>>,
    ) where
        S: Service<Request<RequestBody<B>>, Response = Response<R>, Error = E>,
    {
        if !ready && let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
            self.claim.give_back().await;
            let _ = self.reply.send(Err(error));
            return;
        }
        failpoint::pass(failpoint::GRANTED);
        match call_in_trace(&mut service, request).await {
            Ok(response) => self.handle_response(response).await,
            Err(error) => {
                self.claim.abandon().await;
                let _ = self.reply.send(Err(error));
            }
        }
    }

    async fn handle_response(self, mut response: Response<R>) {
        failpoint::pass(failpoint::ANSWERED);
        match self.claim.config().verdicts.judge(&mut response) {
            HeadVerdict::Decided(verdict) if verdict != Verdict::Keep => {
                self.claim.end_unstored(verdict).await;
            }
            head_verdict => return self.store_response(response, head_verdict).await,
        }
        let _ = self.reply.send(Ok(response.map(ResponseBody::passed_through)));
    }

    async fn store_response(self, response: Response<R>, verdict: HeadVerdict) {
        let (parts, body) = response.into_parts();
        let max = self.claim.config().max_body;
        let length = announced_length(&parts.headers, &body);
        let head = capture(&parts, Bytes::new());
        let body = pin!(body);
        // Trailers that decide are waited for, whether or not all announced bytes are there.
        let end = length.filter(|_| verdict != HeadVerdict::InTrailers);
        let mut reader = BodyReader::new(body, end);
        let small = length.is_none_or(|length| length <= max as u64) && fits(&head, max);
        // An event stream may never end, so no copy of it is collected.
        let small = small && !is_event_stream(&parts);
        let mut copy = CapturedBody { chunks: Vec::new(), room: small.then_some(max) };
        // Most responses are ready at once: these need no channel, and no second task to wake.
        while copy.fits() {
            match reader.next_if_ready().await {
                Poll::Ready(Ok(Some(data))) => copy.add(&data),
                Poll::Ready(Ok(None)) => {
                    let body = FullBody::new(copy.into_bytes(), reader.trailers);
                    return self.settle_full(parts, body, head, verdict).await;
                }
                Poll::Ready(Err(_)) => {
                    self.claim.abandon().await;
                    let problem = Problem::new(
                        ProblemKind::OutcomeUnknown,
                        "the service's response ended early; it may or may not have acted, and a \
                         retry does not run it again",
                    );
                    let _ = self.reply.send(Ok(problem.response().map(ResponseBody::full)));
                    return;
                }
                Poll::Pending => break,
            }
        }
        // Boxed, so that the futures of all the other responses are smaller.
        Box::pin(Streaming { reader, copy, head, verdict, length }.run(self, parts)).await;
    }

    async fn settle_full(
        self,
        parts: Parts,
        body: FullBody,
        head: StoredResponse,
        verdict: HeadVerdict,
    ) {
        let head = add_trailers(head, body.trailers());
        let stored = StoredResponse { body: body.bytes().clone(), ..head };
        let verdict = self.claim.config().verdicts.judge_end(verdict, body.trailers());
        let settled = match verdict {
            Verdict::Keep => self.claim.settle(stored).await,
            unstored => {
                self.claim.end_unstored(unstored).await;
                Ok(())
            }
        };
        let response = match settled {
            Ok(()) => Response::from_parts(parts, body),
            Err(winner) => winner,
        };
        failpoint::pass(failpoint::SETTLED);
        let _ = self.reply.send(Ok(response.map(ResponseBody::full)));
    }
}

/// A response that comes in pieces, is too large to store, or is an event stream.
struct Streaming<'a, R> {
    reader: BodyReader<'a, R>,
    copy: CapturedBody,
    head: StoredResponse,
    verdict: HeadVerdict,
    length: Option<u64>,
}

impl<R> Streaming<'_, R>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn run<E>(mut self, first_run: FirstRun<R, E>, parts: Parts) {
        let FirstRun { claim, reply } = first_run;
        // Room for a whole stored response, so that a slow client does not delay the settle.
        let stored = if self.copy.fits() { claim.config().max_body } else { 0 };
        let capacity = stored.max(MIN_CHANNEL);
        let (sender, receiver) = open_channel(capacity, self.length);
        let _ = reply.send(Ok(Response::from_parts(parts, ResponseBody::streamed(receiver))));
        for data in self.copy.chunks.clone() {
            sender.send(data).await;
        }
        match self.stream(&sender, claim.config().detached_timeout).await {
            Ok(last) => self.finish(claim, sender, last).await,
            Err(error) => {
                claim.abandon().await;
                sender.cut(error);
            }
        }
    }

    /// Sends everything but the last bytes of a response whose length the client knows: with those
    /// it would be complete before it is stored.
    ///
    /// The rest is read on after the client has left, because only its end says that the service
    /// has finished; for `detached_timeout` where it is not stored and may have no end.
    async fn stream(
        &mut self,
        sender: &BodySender,
        detached_timeout: Duration,
    ) -> Result<Option<Bytes>, BoxError> {
        let mut left_for_long = pin!(async {
            sender.closed().await;
            tokio::time::sleep(detached_timeout).await;
        });
        loop {
            if !self.copy.fits() {
                self.copy.chunks = Vec::new();
            }
            let next = tokio::select! {
                next = self.reader.next() => next?,
                () = &mut left_for_long, if !self.copy.fits() => {
                    return Err("the client has left, and the response did not end".into());
                }
            };
            let Some(data) = next else { return Ok(None) };
            self.copy.add(&data);
            if self.reader.is_complete() {
                // Reads the trailers if they are there, and does not wait for them.
                self.reader.next().await?;
                return Ok(Some(data));
            }
            sender.send(data).await;
        }
    }

    async fn finish(self, claim: ClaimGuard, sender: BodySender, last: Option<Bytes>) {
        let trailers = self.reader.trailers;
        let verdict = claim.config().verdicts.judge_end(self.verdict, trailers.as_ref());
        let settled = if verdict != Verdict::Keep {
            claim.end_unstored(verdict).await;
            Ok(())
        } else if self.copy.fits() {
            let head = add_trailers(self.head, trailers.as_ref());
            claim.settle(StoredResponse { body: self.copy.into_bytes(), ..head }).await
        } else {
            let status = self.head.status;
            let tombstone = StoredResponse { status, ..tombstone(StatusCode::OK) };
            claim.settle_tombstone(tombstone).await
        };
        failpoint::pass(failpoint::SETTLED);
        if settled.is_err() {
            return sender.cut("another attempt had taken over".into());
        }
        if let Some(data) = last {
            sender.send(data).await;
        }
        sender.end(trailers);
    }
}

fn is_event_stream(parts: &Parts) -> bool {
    const EVENT_STREAM: &[u8] = b"text/event-stream";
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.get(..EVENT_STREAM.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(EVENT_STREAM))
}

/// The length that the client is told, where it is told one: it knows the end by the last byte then.
fn announced_length<R: HttpBody>(headers: &HeaderMap, body: &R) -> Option<u64> {
    let written = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    body.size_hint().exact().or_else(written)
}

/// Reads the service's response. A body that ends before its announced length is an error.
struct BodyReader<'a, R> {
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
    fn new(body: Pin<&'a mut R>, length: Option<u64>) -> Self {
        Self { body, length, seen: 0, ended: false, trailers: None }
    }

    /// Whether as many bytes have come as were announced.
    fn is_complete(&self) -> bool {
        self.length == Some(self.seen)
    }

    /// The next data, `None` at the end. A complete body ends at once, even if it does not say so.
    async fn next(&mut self) -> Result<Option<Bytes>, BoxError> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    /// The next data if it is there.
    async fn next_if_ready(&mut self) -> Poll<Result<Option<Bytes>, BoxError>> {
        poll_fn(|cx| Poll::Ready(self.poll_next(cx))).await
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

/// The copy of a response.
struct CapturedBody {
    chunks: Vec<Bytes>,
    /// How many more bytes may be stored; `None` once the response is too large.
    room: Option<usize>,
}

impl CapturedBody {
    fn fits(&self) -> bool {
        self.room.is_some()
    }

    /// Adds data. Nothing is added after the first chunk that does not fit.
    fn add(&mut self, data: &Bytes) {
        if let Some(room) = self.room {
            self.chunks.push(data.clone());
            self.room = room.checked_sub(data.len());
        }
    }

    fn into_bytes(self) -> Bytes {
        match &self.chunks[..] {
            // A response is mostly one chunk: do not copy it.
            [one] => one.clone(),
            chunks => chunks.concat().into(),
        }
    }
}

/// Places where a crash test may abort the process: `HAPAX_FAILPOINT=granted:3` does so the third
/// time. Does nothing without the feature `failpoints`.
mod failpoint {
    /// The claim is granted, and the service has not been called.
    pub(super) const GRANTED: &str = "granted";
    /// The service has responded, and nothing is stored.
    pub(super) const ANSWERED: &str = "answered";
    /// The response is stored, and its end has not been sent.
    pub(super) const SETTLED: &str = "settled";

    #[cfg(not(feature = "failpoints"))]
    pub(super) fn pass(_: &str) {}

    #[cfg(feature = "failpoints")]
    pub(super) fn pass(point: &str) {
        use std::sync::LazyLock;
        use std::sync::atomic::{AtomicU64, Ordering};

        static PASSES: AtomicU64 = AtomicU64::new(0);
        static ARMED: LazyLock<Option<(String, u64)>> = LazyLock::new(|| {
            let setting = std::env::var("HAPAX_FAILPOINT").ok()?;
            let (name, pass) = setting.split_once(':')?;
            Some((name.to_owned(), pass.parse().ok()?))
        });
        if let Some((name, deadly)) = &*ARMED
            && name == point
            && PASSES.fetch_add(1, Ordering::SeqCst) + 1 == *deadly
        {
            std::process::abort();
        }
    }
}
