//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::drain::Stopping;
use super::listener::{Answers, Limits, Peer};
use super::pace::{Pace, Paced};
use super::takeover::{Bare, Takeover, head};

/// Streams of one HTTP/2 connection at once, and bytes of headers of one request.
const HTTP2_STREAMS: u32 = 256;
const HTTP2_HEADERS: u32 = 64 * 1024;

/// What one connection needs.
#[derive(Clone)]
pub(super) struct Talk<A> {
    answers: A,
    pub(super) limits: Limits,
    http1: http1::Builder,
    http: auto::Builder<TokioExecutor>,
}

impl<A: Answers> Talk<A> {
    pub(super) fn new(answers: A, limits: Limits) -> Self {
        let mut http1 = http1::Builder::new();
        // Time limits on headers are kept below, where an answer can still be given.
        http1.timer(TokioTimer::new()).header_read_timeout(None);
        Self { answers, limits, http1, http: http() }
    }

    /// Over TLS, or whatever else there is.
    pub(super) async fn with<S>(self, stream: S, peer: Peer, stop: Stopping)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, pace) = Paced::new(stream, self.limits, A::REFUSALS);
        self.serve(stream, pace, peer, stop).await;
    }

    /// Over a bare socket, which a handler may take over where it speaks HTTP/1.1.
    pub(super) async fn bare(
        self,
        stream: TcpStream,
        peer: Peer,
        mut stop: Stopping,
        place: OwnedSemaphorePermit,
    ) {
        let (mut stream, pace) = Paced::new(stream, self.limits, A::REFUSALS);
        let http2 = tokio::select! {
            http2 = stream.begins_http2() => http2,
            () = stop.told() => return,
        };
        match http2 {
            Ok(true) => self.serve(stream, pace, peer, stop).await,
            Ok(false) => self.serve_bare(stream, pace, peer, stop, place).await,
            Err(error) => tracing::debug!("a connection ended: {error}"),
        }
    }

    async fn serve<S>(self, stream: Paced<S>, pace: Pace, peer: Peer, mut stop: Stopping)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { answers, http, .. } = self;
        let service = service_fn(move |request: Request<Incoming>| {
            let (answers, in_flight) = (answers.clone(), pace.request());
            let request = known(request, peer, &pace);
            async move { Ok::<_, Infallible>(answers.answer(request, in_flight).await) }
        });
        let mut connection =
            pin!(http.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = stop.told() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!("a connection ended: {error}");
        }
    }

    async fn serve_bare(
        self,
        stream: Paced<TcpStream>,
        pace: Pace,
        peer: Peer,
        stop: Stopping,
        place: OwnedSemaphorePermit,
    ) {
        let Self { answers, http1, .. } = self;
        let mut told_by = stop.clone();
        let taken = Taken::default();
        let offered = taken.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (answers, in_flight) = (answers.clone(), pace.request());
            let bare = request.version() == Version::HTTP_11 && *request.method() == Method::GET;
            let request = known(request, peer, &pace);
            let offered = offered.clone();
            async move {
                let mut response = answers.answer(request, in_flight).await;
                if bare && let Some(takeover) = response.extensions_mut().remove::<Takeover>() {
                    let (parts, _) = response.into_parts();
                    offered.put(takeover, head(&parts));
                    // Never answered here: whoever drives the connection takes it from us.
                    return std::future::pending().await;
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1.serve_connection(TokioIo::new(stream), service);
        let mut connection = connection.with_upgrades();
        let mut told = false;
        let mut telling = pin!(told_by.told());
        let served = poll_fn(|context| {
            if !told && telling.as_mut().poll(context).is_ready() {
                told = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            match Pin::new(&mut connection).poll(context) {
                Poll::Ready(served) => Poll::Ready(served.map(|()| None)),
                Poll::Pending => {
                    taken.get().map_or(Poll::Pending, |taken| Poll::Ready(Ok(Some(taken))))
                }
            }
        });
        match served.await {
            Ok(None) => {}
            Ok(Some((takeover, head))) => {
                // What the HTTP library kept for the connection goes with it.
                if let Some(parts) = connection.into_parts() {
                    let socket = parts.io.into_inner().into_inner();
                    takeover.go_on(Bare::new(socket, place, stop), head);
                }
            }
            Err(error) => tracing::debug!("a connection ended: {error}"),
        }
    }
}

/// A request with what is known of its connection.
fn known(mut request: Request<Incoming>, peer: Peer, pace: &Pace) -> Request<Incoming> {
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(pace.clone());
    request
}

/// Who takes the connection over, once somebody does.
#[derive(Clone, Default)]
struct Taken(Arc<Mutex<Option<(Takeover, Bytes)>>>);

impl Taken {
    fn put(&self, takeover: Takeover, head: Bytes) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((takeover, head));
    }

    fn get(&self) -> Option<(Takeover, Bytes)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(None);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEADERS)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10));
    http
}
