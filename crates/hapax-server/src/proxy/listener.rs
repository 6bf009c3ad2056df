//! Client connections: accepted up to a number, served, and drained at shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use super::forward::Peer;
use super::gateway::Gateway;
use super::pace::{Limits, Paced};
use super::settings::{Address, Options};

/// Streams of one HTTP/2 connection at once, and bytes of headers of one request.
const HTTP2_STREAMS: u32 = 256;
const HTTP2_HEADERS: u32 = 64 * 1024;
/// How long accepting pauses where the process has no descriptors left.
const BREATHER: Duration = Duration::from_millis(100);

/// Takes an address, or says who may have it.
pub(crate) async fn bind(flag: &str, address: &Address) -> anyhow::Result<TcpListener> {
    TcpListener::bind(&address.addresses[..]).await.with_context(|| {
        let place = &address.text;
        format!("cannot listen on {place}; is something else running there? --{flag} takes another")
    })
}

/// Accepts and serves until it is dropped.
pub(crate) struct Server {
    gateway: Gateway,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
    http: auto::Builder<TokioExecutor>,
}

impl Server {
    pub(crate) fn new(gateway: Gateway, tls: Option<TlsAcceptor>, options: &Options) -> Self {
        Self {
            gateway,
            tls,
            limits: Limits { header: options.header_timeout, idle: options.idle_timeout },
            connections: Arc::new(Semaphore::new(options.max_connections)),
            graceful: GracefulShutdown::new(),
            http: http(),
        }
    }

    /// Accepts for ever.
    pub(crate) async fn accept(&self, listener: &TcpListener) {
        loop {
            let place = self.connections.clone().acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, from)) => {
                    let _ = stream.set_nodelay(true);
                    let peer = Peer { ip: from.ip().to_canonical(), tls: self.tls.is_some() };
                    let serving = self.serve(stream, peer);
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

    fn serve(&self, stream: TcpStream, peer: Peer) -> impl Future<Output = ()> + Send + use<> {
        let (gateway, http, limits) = (self.gateway.clone(), self.http.clone(), self.limits);
        let (tls, watcher) = (self.tls.clone(), self.graceful.watcher());
        async move {
            let Some(tls) = tls else {
                return talk(stream, peer, gateway, http, limits, watcher).await;
            };
            match tokio::time::timeout(limits.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk(stream, peer, gateway, http, limits, watcher).await,
                Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }

    /// Lets requests in flight end; idle connections are closed.
    pub(crate) async fn drain(self) {
        self.graceful.shutdown().await;
    }
}

async fn talk<S>(
    stream: S,
    peer: Peer,
    gateway: Gateway,
    http: auto::Builder<TokioExecutor>,
    limits: Limits,
    watcher: Watcher,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, pace) = Paced::new(stream, limits);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (gateway, in_flight) = (gateway.clone(), pace.request());
        request.extensions_mut().insert(peer);
        request.extensions_mut().insert(pace.clone());
        async move { Ok::<_, Infallible>(gateway.answer(request, in_flight).await) }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service);
    if let Err(error) = watcher.watch(connection).await {
        tracing::debug!("a connection ended: {error}");
    }
}

fn http() -> auto::Builder<TokioExecutor> {
    let mut http = auto::Builder::new(TokioExecutor::new());
    // The limit on headers is kept below, where an idle connection has another one.
    http.http1().timer(TokioTimer::new()).header_read_timeout(None);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(HTTP2_STREAMS)
        .max_header_list_size(HTTP2_HEADERS)
        .keep_alive_interval(Some(Duration::from_secs(20)))
        .keep_alive_timeout(Duration::from_secs(10));
    http
}
