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

use crate::failpoint::{self, ANSWERED, GRANTED, SETTLED};
use crate::feed::{self, Feed};
use crate::held::Held;
use crate::replay::{add_trailers, fits, keep, not_kept};
use crate::source::{Copy, Source, announced};
use crate::{Answer, Body, BoxError, Verdict, Whole, answers, traced};

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
        failpoint::pass(GRANTED);
        match traced::call(&mut service, request).await {
            Ok(response) => self.answered(response).await,
            Err(error) => {
                self.held.abandon().await;
                let _ = self.reply.send(Err(error));
            }
        }
    }

    async fn answered(self, mut response: Response<R>) {
        failpoint::pass(ANSWERED);
        match self.held.shared().settings.verdicts.judge(&mut response) {
            Verdict::Keep => return self.keep(response).await,
            Verdict::GiveBack => self.held.give_back().await,
            Verdict::Unknown => self.held.abandon().await,
        }
        let _ = self.reply.send(Ok(response.map(Answer::through)));
    }

    async fn keep(self, response: Response<R>) {
        let (parts, body) = response.into_parts();
        if is_event_stream(&parts) {
            return self.pass_on(parts, body).await;
        }
        let limit = self.held.shared().settings.limit;
        let length = announced(&parts.headers, &body);
        let stored = keep(&parts, Bytes::new());
        let body = pin!(body);
        let mut source = Source::new(body, length);
        let mut copy = match length {
            Some(length) if length > limit as u64 => Copy::none(),
            _ if !fits(&stored, limit) => Copy::none(),
            _ => Copy::new(limit),
        };
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

    async fn keep_whole(self, parts: Parts, body: Whole, stored: command::StoredResponse) {
        let stored = add_trailers(stored, body.trailers());
        let stored = command::StoredResponse { body: body.bytes().clone(), ..stored };
        let response = match self.held.settle(stored).await {
            Ok(()) => Response::from_parts(parts, body),
            Err(instead) => instead,
        };
        failpoint::pass(SETTLED);
        let _ = self.reply.send(Ok(response.map(Answer::whole)));
    }

    /// Events have no end to wait for: they go to the client as they are, and it is remembered that
    /// they began.
    async fn pass_on(self, parts: Parts, body: R) {
        let response = match self.held.settle_without_answer(not_kept(parts.status)).await {
            Ok(()) => Response::from_parts(parts, Answer::through(body)),
            Err(instead) => instead.map(Answer::whole),
        };
        let _ = self.reply.send(Ok(response));
    }
}

/// An answer that comes bit by bit, or is too large to keep.
struct Streaming<'a, R> {
    source: Source<'a, R>,
    copy: Copy,
    stored: command::StoredResponse,
    length: Option<u64>,
}

impl<R> Streaming<'_, R>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn run<E>(mut self, first: FirstRun<R, E>, parts: Parts) {
        let FirstRun { held, reply } = first;
        // As much as is kept may also wait: a slow client does not keep its answer from being stored.
        let room = held.shared().settings.limit.max(LEAST_ROOM);
        let (feed, live) = feed::open(room, self.length);
        let _ = reply.send(Ok(Response::from_parts(parts, Answer::live(live))));
        for data in self.copy.chunks() {
            feed.send(data).await;
        }
        match self.stream(&feed).await {
            Ok(last) => self.finish(held, feed, last).await,
            Err(error) => {
                held.abandon().await;
                feed.cut(error);
            }
        }
    }

    /// Sends everything on but the last bytes of an answer whose length the client knows: with
    /// those it would have it all.
    async fn stream(&mut self, feed: &Feed) -> Result<Option<Bytes>, BoxError> {
        loop {
            if !self.copy.fits() {
                self.copy.forget();
            }
            let next = tokio::select! {
                next = self.source.next() => next?,
                // It would be read for nobody, neither a client nor the store.
                () = feed.closed(), if !self.copy.fits() => None,
            };
            let Some(data) = next else { return Ok(None) };
            self.copy.add(&data);
            if self.source.is_complete() {
                // Trailers, if they are there, or the end: it does not wait any more.
                self.source.next().await?;
                return Ok(Some(data));
            }
            feed.send(data).await;
        }
    }

    async fn finish(self, held: Held, feed: Feed, last: Option<Bytes>) {
        let trailers = self.source.into_trailers();
        let settled = if self.copy.fits() {
            let stored = add_trailers(self.stored, trailers.as_ref());
            let stored = command::StoredResponse { body: self.copy.into_bytes(), ..stored };
            held.settle(stored).await
        } else {
            let tombstone = not_kept(http::StatusCode::OK);
            let status = self.stored.status;
            held.settle_without_answer(command::StoredResponse { status, ..tombstone }).await
        };
        failpoint::pass(SETTLED);
        if settled.is_err() {
            return feed.cut("another attempt had taken over".into());
        }
        if let Some(data) = last {
            feed.send(data).await;
        }
        feed.end(trailers);
    }
}

fn is_event_stream(parts: &Parts) -> bool {
    const KIND: &[u8] = b"text/event-stream";
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.get(..KIND.len()).is_some_and(|kind| kind.eq_ignore_ascii_case(KIND))
}
