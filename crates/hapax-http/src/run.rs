//! The first request with a key: runs it, keeps its answer, and sends it on its way.
//!
//! An answer streams to the client as it comes, while a copy is kept. Its end goes out only after the
//! store has it: who has seen the whole answer can rely on getting it again.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hapax_core::command::{self, CommandError, Running};
use http::header::CONTENT_TYPE;
use http::response::Parts;
use http::{Method, Request, Response};
use http_body::{Body as HttpBody, Frame};
use http_body_util::BodyExt;
use tokio::sync::oneshot;
use tower_service::Service;

use crate::body::{Feed, live};
use crate::replay::{keep, not_kept};
use crate::service::{in_progress, whole_answer};
use crate::{Answer, Body, BoxError, Event, Settings, Verdict};

pub(crate) struct FirstRun<R, E> {
    pub(crate) running: Running,
    pub(crate) settings: Arc<Settings>,
    pub(crate) method: Method,
    pub(crate) reply: oneshot::Sender<Result<Response<Answer<R>>, E>>,
}

/// What became of the settle.
enum Settled {
    /// The store has it, or will: the effect happened, and its caller gets the answer either way.
    Yes,
    /// Another attempt had taken over.
    Lost,
}

impl<R, E> FirstRun<R, E>
where
    R: HttpBody<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    pub(crate) async fn go<S, B>(self, mut service: S, request: Request<Body<B>>)
    where
        S: Service<Request<Body<B>>, Response = Response<R>, Error = E>,
    {
        let mut response = match service.call(request).await {
            Ok(response) => response,
            Err(error) => {
                self.settings.tell(Event::Unknown, &self.method);
                let _ = self.running.abandon().await;
                let _ = self.reply.send(Err(error));
                return;
            }
        };
        match self.verdict(&mut response) {
            Verdict::Keep => self.keep(response).await,
            Verdict::GiveBack => {
                self.settings.tell(Event::GivenBack, &self.method);
                let _ = self.running.fail().await;
                let _ = self.reply.send(Ok(response.map(Answer::through)));
            }
            Verdict::Unknown => {
                self.settings.tell(Event::Unknown, &self.method);
                let _ = self.running.abandon().await;
                let _ = self.reply.send(Ok(response.map(Answer::through)));
            }
        }
    }

    fn verdict(&self, response: &mut Response<R>) -> Verdict {
        let never = response.headers_mut().remove("idempotency-store");
        if let Some(verdict) = response.extensions().get() {
            return *verdict;
        }
        if never.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"never")) {
            return Verdict::GiveBack;
        }
        self.settings.verdicts.of(response.status())
    }

    async fn keep(self, response: Response<R>) {
        let limit = self.settings.limit as u64;
        let (parts, body) = response.into_parts();
        let length = body.size_hint().exact();
        if is_event_stream(&parts) || length.is_some_and(|length| length > limit) {
            return self.keep_tombstone(parts, body).await;
        }
        let mut body = Box::pin(body);
        let mut copy = Copy::new(self.settings.limit);
        // Most answers are there at once: no channel, and no second task to wake.
        match at_once(&mut body, &mut copy).await {
            AtOnce::Whole => self.keep_whole(parts, copy.kept.freeze()).await,
            AtOnce::More(ready) => self.keep_live(parts, body, copy, ready, length).await,
            AtOnce::Cut(error) => self.cut(parts, error).await,
        }
    }

    async fn keep_whole(self, parts: Parts, body: Bytes) {
        let stored = keep(&parts, body.clone());
        let Self { running, settings, method, reply } = self;
        let response = match settle(running, &settings, &method, stored).await {
            Settled::Yes => Response::from_parts(parts, Answer::whole(body)),
            Settled::Lost => whole_answer(in_progress(settings.lease).response()),
        };
        let _ = reply.send(Ok(response));
    }

    /// Too large to keep, or without an end: passed on as it is, and remembered as having happened.
    async fn keep_tombstone(self, parts: Parts, body: R) {
        let Self { running, settings, method, reply } = self;
        settings.tell(Event::NotKept, &method);
        let response = match settle(running, &settings, &method, not_kept(parts.status)).await {
            Settled::Yes => Response::from_parts(parts, Answer::through(body)),
            Settled::Lost => whole_answer(in_progress(settings.lease).response()),
        };
        let _ = reply.send(Ok(response));
    }

    async fn keep_live(
        self,
        parts: Parts,
        mut body: Pin<Box<R>>,
        mut copy: Copy,
        ready: Vec<Frame<Bytes>>,
        length: Option<u64>,
    ) {
        let Self { running, settings, method, reply } = self;
        let (feed, live) = live(settings.limit.max(64 * 1024), length);
        let (status, head) = (parts.status, Parts::clone(&parts));
        let _ = reply.send(Ok(Response::from_parts(parts, Answer::Live(live))));
        let mut running = Some(running);
        for frame in ready {
            feed.send(frame).await;
        }
        let mut last = None;
        while let Some(frame) = next(&mut body).await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    return cut_live(running, feed, error, &settings, &method).await;
                }
            };
            if !copy.add(&frame)
                && let Some(running) = running.take()
            {
                settings.tell(Event::NotKept, &method);
                if let Settled::Lost = settle(running, &settings, &method, not_kept(status)).await {
                    return feed.cut("another attempt had taken over".into());
                }
            }
            // With a length the client knows the end by its last byte: that frame waits.
            if length == Some(copy.seen) && running.is_some() {
                last = Some(frame);
                break;
            }
            feed.send(frame).await;
        }
        if let Some(running) = running.take() {
            let stored = keep(&head, copy.kept.freeze());
            if let Settled::Lost = settle(running, &settings, &method, stored).await {
                return feed.cut("another attempt had taken over".into());
            }
        }
        if let Some(frame) = last {
            feed.send(frame).await;
        }
    }

    /// Cut before anything was sent on.
    async fn cut(self, parts: Parts, error: BoxError) {
        let Self { running, settings, method, reply } = self;
        let (feed, live) = live(0, None);
        let _ = reply.send(Ok(Response::from_parts(parts, Answer::Live(live))));
        cut_live(Some(running), feed, error, &settings, &method).await;
    }
}

/// An answer that ended before its end: whether there was an effect, nobody knows.
async fn cut_live(
    running: Option<Running>,
    feed: Feed,
    error: BoxError,
    settings: &Settings,
    method: &Method,
) {
    if let Some(running) = running {
        settings.tell(Event::Unknown, method);
        let _ = running.abandon().await;
    }
    feed.cut(error);
}

/// Settles; where the store fails, goes on trying behind the client's back while the lease may last.
async fn settle(
    running: Running,
    settings: &Settings,
    method: &Method,
    stored: command::Response,
) -> Settled {
    match running.complete(&stored).await {
        Ok(()) => {
            settings.tell(Event::Kept, method);
            Settled::Yes
        }
        Err(CommandError::Store(_)) => {
            settings.tell(Event::StoreError, method);
            let tries = settings.lease.as_secs().clamp(5, 60);
            tokio::spawn(async move {
                for _ in 0..tries {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    if !matches!(running.complete(&stored).await, Err(CommandError::Store(_))) {
                        break;
                    }
                }
            });
            Settled::Yes
        }
        Err(_) => {
            settings.tell(Event::Lost, method);
            Settled::Lost
        }
    }
}

/// The copy of an answer, up to the limit.
struct Copy {
    kept: BytesMut,
    seen: u64,
    limit: usize,
}

impl Copy {
    fn new(limit: usize) -> Self {
        Self { kept: BytesMut::new(), seen: 0, limit }
    }

    /// Adds a frame; whether the whole answer still fits.
    fn add(&mut self, frame: &Frame<Bytes>) -> bool {
        let Some(data) = frame.data_ref() else { return self.fits() };
        self.seen += data.len() as u64;
        if self.fits() {
            self.kept.extend_from_slice(data);
        } else {
            self.kept = BytesMut::new();
        }
        self.fits()
    }

    fn fits(&self) -> bool {
        self.seen <= self.limit as u64
    }
}

async fn next<R>(body: &mut Pin<Box<R>>) -> Option<Result<Frame<Bytes>, BoxError>>
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    body.frame().await.map(|frame| frame.map_err(Into::into))
}

enum AtOnce {
    Whole,
    More(Vec<Frame<Bytes>>),
    Cut(BoxError),
}

/// Takes what is ready without waiting, as far as it fits.
async fn at_once<R>(body: &mut Pin<Box<R>>, copy: &mut Copy) -> AtOnce
where
    R: HttpBody<Data = Bytes>,
    R::Error: Into<BoxError>,
{
    let mut ready = Vec::new();
    while !body.is_end_stream() {
        let polled = poll_fn(|cx| {
            Poll::Ready(match body.as_mut().poll_frame(cx) {
                Poll::Ready(frame) => Some(frame),
                Poll::Pending => None,
            })
        });
        match polled.await {
            Some(None) => return AtOnce::Whole,
            Some(Some(Err(error))) => return AtOnce::Cut(error.into()),
            // Trailers cannot be kept with the bytes: they go the long way.
            Some(Some(Ok(frame))) if frame.is_trailers() => {
                ready.push(frame);
                return AtOnce::More(ready);
            }
            Some(Some(Ok(frame))) => {
                let fits = copy.add(&frame);
                ready.push(frame);
                if !fits {
                    return AtOnce::More(ready);
                }
            }
            None => return AtOnce::More(ready),
        }
    }
    AtOnce::Whole
}

fn is_event_stream(parts: &Parts) -> bool {
    let kind = parts.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    kind.to_ascii_lowercase().starts_with(b"text/event-stream")
}
