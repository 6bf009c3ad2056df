//! Serves one connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

use super::io_timeouts::{ConnectionActivity, IoTimeouts, TimedStream};
use super::listener::{DrainSignal, Peer, RequestHandler};
use super::open_connections::{OpenConnection, OpenConnections};
use super::takeover::{RawConnection, Takeover, response_head};

/// Concurrent streams of one HTTP/2 connection, and bytes of headers of one request.
const MAX_HTTP2_STREAMS: u32 = 256;
const MAX_HTTP2_HEADERS: u32 = 64 * 1024;

#[derive(Clone)]
pub(super) struct ConnectionServer<H> {
    handler: H,
    pub(super) timeouts: IoTimeouts,
    open: OpenConnections,
    http1: http1::Builder,
    http: auto::Builder<TokioExecutor>,
}

impl<H: RequestHandler> ConnectionServer<H> {
    pub(super) fn new(handler: H, timeouts: IoTimeouts, open: OpenConnections) -> Self {
        let mut http1 = http1::Builder::new();
        // `TimedStream` has the timeout of headers, as it can still write a response then.
        http1.timer(TokioTimer::new()).header_read_timeout(None);
        Self { handler, timeouts, open, http1, http: http() }
    }

    /// Serves a stream that cannot be taken over, such as one with TLS.
    pub(super) async fn serve_stream<S>(
        self,
        stream: S,
        place: OwnedSemaphorePermit,
        peer: Peer,
        drain: DrainSignal,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (stream, activity) = TimedStream::new(stream, place, self.timeouts);
        let open = self.open.register(activity.clone());
        self.serve_auto(stream, activity, &open, peer, drain).await;
    }

    /// Serves a plain socket, which a handler may take over where it speaks HTTP/1.1.
    pub(super) async fn serve_socket(
        self,
        stream: TcpStream,
        place: OwnedSemaphorePermit,
        peer: Peer,
        mut drain: DrainSignal,
    ) {
        let (mut stream, activity) = TimedStream::new(stream, place, self.timeouts);
        let open = self.open.register(activity.clone());
        let http2 = tokio::select! {
            http2 = stream.begins_http2() => http2,
            () = drain.begins() => return,
            () = open.asked_to_close() => return,
        };
        match http2 {
            Ok(true) => self.serve_auto(stream, activity, &open, peer, drain).await,
            Ok(false) => self.serve_http1(stream, activity, &open, peer, drain).await,
            Err(error) => tracing::debug!("a connection ended: {error}"),
        }
    }

    async fn serve_auto<S>(
        self,
        stream: TimedStream<S>,
        activity: ConnectionActivity,
        open: &OpenConnection,
        peer: Peer,
        mut drain: DrainSignal,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { handler, http, .. } = self;
        let service = service_fn(move |request: Request<Incoming>| {
            let (handler, in_flight) = (handler.clone(), activity.begin_request());
            let request = with_connection(request, peer, &activity);
            async move { Ok::<_, Infallible>(handler.handle(request, in_flight).await) }
        });
        let mut connection =
            pin!(http.serve_connection_with_upgrades(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = ends(&mut drain, open) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!("a connection ended: {error}");
        }
    }

    async fn serve_http1(
        self,
        stream: TimedStream<TcpStream>,
        activity: ConnectionActivity,
        open: &OpenConnection,
        peer: Peer,
        drain: DrainSignal,
    ) {
        let Self { handler, http1, .. } = self;
        let mut signal = drain.clone();
        let pending = PendingTakeover::default();
        let offered = pending.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (handler, in_flight) = (handler.clone(), activity.begin_request());
            let can_take_over =
                request.version() == Version::HTTP_11 && *request.method() == Method::GET;
            let request = with_connection(request, peer, &activity);
            let offered = offered.clone();
            async move {
                let mut response = handler.handle(request, in_flight).await;
                if can_take_over
                    && let Some(takeover) = response.extensions_mut().remove::<Takeover>()
                {
                    let (parts, _) = response.into_parts();
                    *lock(&offered) = Some((takeover, response_head(&parts)));
                    // The loop that polls the connection drops this future and takes over.
                    return std::future::pending().await;
                }
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1.serve_connection(TokioIo::new(stream), service);
        let mut connection = connection.with_upgrades();
        let mut draining = false;
        let mut ends = pin!(ends(&mut signal, open));
        let served = poll_fn(|context| {
            if !draining && ends.as_mut().poll(context).is_ready() {
                draining = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            match Pin::new(&mut connection).poll(context) {
                Poll::Ready(served) => Poll::Ready(served.map(|()| None)),
                Poll::Pending => lock(&pending)
                    .take()
                    .map_or(Poll::Pending, |taken| Poll::Ready(Ok(Some(taken)))),
            }
        });
        match served.await {
            Ok(None) => {}
            Ok(Some((takeover, head))) => {
                // The buffers of the HTTP library are dropped with its connection.
                if let Some(parts) = connection.into_parts() {
                    let (socket, place) = parts.io.into_inner().into_parts();
                    takeover.run(RawConnection::new(socket, place, drain), head);
                }
            }
            Err(error) => tracing::debug!("a connection ended: {error}"),
        }
    }
}

/// Completes when the connection should take no further request.
async fn ends(drain: &mut DrainSignal, open: &OpenConnection) {
    tokio::select! {
        () = drain.begins() => {}
        () = open.asked_to_close() => {}
    }
}

fn with_connection(
    mut request: Request<Incoming>,
    peer: Peer,
    activity: &ConnectionActivity,
) -> Request<Incoming> {
    request.extensions_mut().insert(peer);
    request.extensions_mut().insert(activity.clone());
    request
}

/// The takeover that a handler asked for, with the head of its response.
type PendingTakeover = Arc<Mutex<Option<(Takeover, Bytes)>>>;

fn lock(pending: &PendingTakeover) -> MutexGuard<'_, Option<(Takeover, Bytes)>> {
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(None);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_HTTP2_STREAMS)
        .max_header_list_size(MAX_HTTP2_HEADERS)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10));
    http
}
