//! Connections: accepted up to a number, served, and drained at shutdown.

use std::convert::Infallible;
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::pace::{InFlight, Paced, Refusals};
use super::signals::Signals;
use crate::settings::Listen;

/// Streams of one HTTP/2 connection at once, and bytes of headers of one request.
const HTTP2_STREAMS: u32 = 256;
const HTTP2_HEADERS: u32 = 64 * 1024;
/// How long accepting pauses where the process has no descriptors left.
const BREATHER: Duration = Duration::from_millis(100);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Takes an address, or says who may have it.
pub(crate) async fn bind(flag: &str, listen: &Listen) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen.addresses()).await.with_context(|| {
        let place = listen.text();
        format!("cannot listen on {place}; is another server running there? --{flag} takes another")
    })
}

/// What answers requests.
pub(crate) trait Answers: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;

    /// What is said to requests that never become one; nothing without.
    const REFUSALS: Option<Refusals>;

    /// Answers one. It is in flight until the guard is dropped; the [`Peer`] and the connection's
    /// [`Pace`](super::Pace) are among its extensions.
    fn answer(
        &self,
        request: Request<Incoming>,
        in_flight: InFlight,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Who sent a request, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    pub(crate) tls: bool,
}

/// How long a client may take, and how many there may be.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) header: Duration,
    pub(crate) idle: Duration,
    pub(crate) connections: usize,
}

/// Accepts and serves until it is told to stop.
pub(crate) struct Server<A> {
    talk: Talk<A>,
    tls: Option<TlsAcceptor>,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
}

impl<A: Answers> Server<A> {
    pub(crate) fn new(answers: A, tls: Option<TlsAcceptor>, limits: Limits) -> Self {
        Self {
            talk: Talk { answers, limits, http: http() },
            tls,
            connections: Arc::new(Semaphore::new(limits.connections)),
            graceful: GracefulShutdown::new(),
        }
    }

    /// Serves until a signal, and ends in order: nothing new is accepted and `stop` is called, who
    /// works may finish, up to a limit or a second signal.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        mut signals: Signals,
        limit: Duration,
        stop: impl AsyncFnOnce(),
    ) {
        // With its future goes the listener: the kernel turns new clients away from there on.
        tokio::select! {
            () = self.accept(listener) => {}
            () = signals.next() => {}
        }
        tracing::info!(
            "shutting down: requests in flight have {limit:?}; a second signal ends at once"
        );
        let drained = async { tokio::join!(stop(), self.graceful.shutdown()) };
        tokio::select! {
            _ = drained => tracing::info!("every request was answered"),
            () = tokio::time::sleep(limit) => {
                tracing::warn!("some requests were not answered in time");
            }
            () = signals.next() => tracing::warn!("a second signal: ending now"),
        }
    }

    /// Accepts for ever.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        loop {
            let place = self.connections.clone().acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, from)) => {
                    // Answers are written at once: there is nothing to wait for.
                    let _ = stream.set_nodelay(true);
                    let serving = self.serve(stream, from.ip().to_canonical());
                    tokio::spawn(async move {
                        serving.await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream, ip: IpAddr) -> impl Future<Output = ()> + Send + use<A> {
        let (talk, tls, watcher) = (self.talk.clone(), self.tls.clone(), self.graceful.watcher());
        let peer = Peer { ip, tls: tls.is_some() };
        async move {
            let Some(tls) = tls else { return talk.with(stream, peer, watcher).await };
            match tokio::time::timeout(talk.limits.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk.with(stream, peer, watcher).await,
                Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}

/// What one connection needs.
#[derive(Clone)]
struct Talk<A> {
    answers: A,
    limits: Limits,
    http: auto::Builder<TokioExecutor>,
}

impl<A: Answers> Talk<A> {
    async fn with<S>(self, stream: S, peer: Peer, watcher: Watcher)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { answers, limits, http } = self;
        let (stream, pace) = Paced::new(stream, limits, A::REFUSALS);
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (answers, in_flight) = (answers.clone(), pace.request());
            request.extensions_mut().insert(peer);
            request.extensions_mut().insert(pace.clone());
            async move { Ok::<_, Infallible>(answers.answer(request, in_flight).await) }
        });
        let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
        if let Err(error) = watcher.watch(connection).await {
            tracing::debug!("a connection ended: {error}");
        }
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // Time limits on headers are kept below, where an answer can still be given.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEADERS)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10));
    http
}
