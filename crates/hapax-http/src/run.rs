//! The first request with a key: runs it, keeps its answer, and sends it on its way.
//!
//! An answer streams to the client as it comes, while a copy is kept. Its end goes out only after the
//! store has it: who has seen the whole answer can rely on getting it again.

use std::future::poll_fn;
use std::pin::pin;

use bytes::Bytes;
use hapax_core::command;
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{Request, Response};
use http_body::Body as HttpBody;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::feed::{self, Feed};
use crate::held::Held;
use crate::replay::{add_trailers, fits, keep, not_kept};
use crate::source::{Copy, Source, announced};
use crate::{Answer, Body, BoxError, Verdict, Whole, answers};

/// The least that may be on its way to the client when the limit is small.
const LEAST_ROOM: usize = 64 * 1024;

pub(crate) struct FirstRun<R, E> {
    pub(crate) held: Held,
    pub(crate) reply: oneshot::Sender<Result<Response<Answer<R>>, E>>,
}

impl<R, E> FirstRun<R, E>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    /// Runs the service; `ready` says that it was polled ready before.
    pub(crate) async fn go<S, B>(self, mut service: S, ready: bool, request: Request<Body<B>>)
    where
        S: Service<Request<Body<B>>, Response = Response<R>, Error = E>,
    {
        if !ready && let Err(error) = poll_fn(|cx| service.poll_ready(cx)).await {
            self.held.give_back().await;
            let _ = self.reply.send(Err(error));
            return;
        }
        match service.call(request).await {
            Ok(response) => self.answered(response).await,
            Err(error) => {
                self.held.abandon().await;
                let _ = self.reply.send(Err(error));
            }
        }
    }

    async fn answered(self, mut response: Response<R>) {
        match self.verdict(&mut response) {
            Verdict::Keep => return self.keep(response).await,
            Verdict::GiveBack => self.held.give_back().await,
            Verdict::Unknown => self.held.abandon().await,
        }
        let _ = self.reply.send(Ok(response.map(Answer::through)));
    }

    /// The service's own word counts more than its status.
    fn verdict(&self, response: &mut Response<R>) -> Verdict {
        let never = response.headers_mut().remove("idempotency-store");
        if let Some(verdict) = response.extensions().get() {
            return *verdict;
        }
        if never.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"never")) {
            return Verdict::GiveBack;
        }
        self.held.shared().settings.verdicts.of(response.status())
    }

    async fn keep(self, response: Response<R>) {
        let limit = self.held.shared().settings.limit;
        let (parts, body) = response.into_parts();
        let length = announced(&parts.headers, &body);
        let stored = keep(&parts, Bytes::new());
        let too_large = length.is_some_and(|length| length > limit as u64);
        if too_large || is_event_stream(&parts) || !fits(&stored, limit) {
            return self.pass_on(parts, body).await;
        }
        let body = pin!(body);
        let mut source = Source::new(body, length);
        let mut copy = Copy::new(limit);
        // Most answers are there at once: no channel, and no second task to wake.
        while copy.fits() {
            match source.next_if_ready().await {
                Some(Ok(Some(data))) => copy.add(&data),
                Some(Ok(None)) => {
                    let body = Whole::new(copy.into_bytes(), source.into_trailers());
                    return self.keep_whole(parts, body, stored).await;
                }
                Some(Err(_)) => {
                    self.held.abandon().await;
                    let _ = self.reply.send(Ok(answers::cut().response().map(Answer::whole)));
                    return;
                }
                None => break,
            }
        }
        Streaming { source, copy, stored, length }.run(self, parts).await;
    }

    async fn keep_whole(self, parts: Parts, body: Whole, stored: command::Response) {
        let stored = add_trailers(stored, body.trailers());
        let stored = command::Response { body: body.bytes().clone(), ..stored };
        let response = match self.held.settle(stored).await {
            Ok(()) => Response::from_parts(parts, body),
            Err(instead) => instead,
        };
        let _ = self.reply.send(Ok(response.map(Answer::whole)));
    }

    /// Too large to keep, or without an end: goes to the client as it is, and is remembered as
    /// having happened.
    async fn pass_on(self, parts: Parts, body: R) {
        let response = match self.held.settle_without_answer(not_kept(parts.status)).await {
            Ok(()) => Response::from_parts(parts, Answer::through(body)),
            Err(instead) => instead.map(Answer::whole),
        };
        let _ = self.reply.send(Ok(response));
    }
}

/// An answer that comes bit by bit.
struct Streaming<'a, R> {
    source: Source<'a, R>,
    copy: Copy,
    stored: command::Response,
    length: Option<u64>,
}

impl<R> Streaming<'_, R>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn run<E>(mut self, first: FirstRun<R, E>, parts: Parts) {
        let FirstRun { held, reply } = first;
        let room = held.shared().settings.limit.max(LEAST_ROOM);
        let mut held = Some(held);
        let ready = self.copy.chunks();
        if let Err(instead) = self.let_go_of_what_does_not_fit(&mut held).await {
            let _ = reply.send(Ok(instead.map(Answer::whole)));
            return;
        }
        let (feed, live) = feed::open(room, self.length);
        let _ = reply.send(Ok(Response::from_parts(parts, Answer::live(live))));
        for data in ready {
            feed.send(data).await;
        }
        match self.stream(&mut held, &feed).await {
            Ok(last) => self.finish(held, feed, last).await,
            Err(error) => {
                if let Some(held) = held {
                    held.abandon().await;
                }
                feed.cut(error);
            }
        }
    }

    /// Sends everything on but the last bytes of an answer whose length the client knows: with
    /// those it would have it all.
    async fn stream(
        &mut self,
        held: &mut Option<Held>,
        feed: &Feed,
    ) -> Result<Option<Bytes>, BoxError> {
        loop {
            let next = tokio::select! {
                next = self.source.next() => next?,
                // What happened is stored, and nobody is there to hear the rest.
                () = feed.closed(), if held.is_none() => None,
            };
            let Some(data) = next else { return Ok(None) };
            self.copy.add(&data);
            if self.let_go_of_what_does_not_fit(held).await.is_err() {
                return Err("another attempt had taken over".into());
            }
            if held.is_some() && self.source.is_complete() {
                // Trailers, if they are there, or the end: it does not wait any more.
                self.source.next().await?;
                return Ok(Some(data));
            }
            feed.send(data).await;
        }
    }

    async fn finish(self, held: Option<Held>, feed: Feed, last: Option<Bytes>) {
        let trailers = self.source.into_trailers();
        if let Some(held) = held {
            let stored = add_trailers(self.stored, trailers.as_ref());
            let stored = command::Response { body: self.copy.into_bytes(), ..stored };
            if held.settle(stored).await.is_err() {
                return feed.cut("another attempt had taken over".into());
            }
        }
        if let Some(data) = last {
            feed.send(data).await;
        }
        feed.end(trailers);
    }

    /// Over the limit: what happened is stored now, and the answer is not.
    async fn let_go_of_what_does_not_fit(
        &mut self,
        held: &mut Option<Held>,
    ) -> Result<(), Response<Whole>> {
        if self.copy.fits() {
            return Ok(());
        }
        self.copy.forget();
        match held.take() {
            Some(held) => held.settle_without_answer(tombstone(&self.stored)).await,
            None => Ok(()),
        }
    }
}

fn tombstone(stored: &command::Response) -> command::Response {
    command::Response { status: stored.status, ..not_kept(http::StatusCode::OK) }
}

fn is_event_stream(parts: &Parts) -> bool {
    const KIND: &[u8] = b"text/event-stream";
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.get(..KIND.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(KIND))
}
