//! Accepts connections up to a maximum, serves them, and drains them at shutdown.

use std::error::Error;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt;

use super::body::GuardedBody;
use super::connection::ConnectionServer;
use super::io_timeouts::{InFlightGuard, IoTimeouts};
use super::open_connections::OpenConnections;
use super::takeover::Takeover;
use crate::settings::ListenAddress;

/// How long accepting pauses after an error, such as a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Binds an address; the error names the flag that takes another one.
pub(super) async fn bind(flag: &str, listen: &ListenAddress) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen.addresses()).await.with_context(|| {
        let place = listen.text();
        format!("cannot listen on {place}; is another server running there? --{flag} takes another")
    })
}

pub(crate) trait RequestHandler: Clone + Send + Sync + 'static {
    type Body: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;

    /// Handles one request, which is in flight until the guard is dropped. Its extensions hold the
    /// [`Peer`] and the [`ConnectionActivity`](super::ConnectionActivity).
    fn handle(
        &self,
        request: Request<Incoming>,
        in_flight: InFlightGuard,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

impl RequestHandler for Router {
    type Body = axum::body::Body;

    async fn handle(
        &self,
        request: Request<Incoming>,
        in_flight: InFlightGuard,
    ) -> Response<Self::Body> {
        let response = self.clone().oneshot(request.map(Self::Body::new)).await;
        let response = response.unwrap_or_else(|never| match never {});
        // A client that listens to an event stream is not idle.
        match response.extensions().get::<Takeover>() {
            Some(_) => response.map(|body| Self::Body::new(GuardedBody::new(body, in_flight))),
            None => response,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub(crate) ip: IpAddr,
    pub(crate) tls: bool,
}

pub(super) struct HttpServer<H> {
    connection: ConnectionServer<H>,
    tls: Option<TlsAcceptor>,
    open: OpenConnections,
    drain: ConnectionDrain,
}

impl<H: RequestHandler> HttpServer<H> {
    pub(super) fn new(
        handler: H,
        tls: Option<TlsAcceptor>,
        timeouts: IoTimeouts,
        max_connections: usize,
    ) -> Self {
        let open = OpenConnections::new(max_connections);
        Self {
            connection: ConnectionServer::new(handler, timeouts, open.clone()),
            tls,
            open,
            drain: ConnectionDrain::default(),
        }
    }

    /// Serves until a signal, then shuts down in order: nothing new is accepted, `stop` runs, and
    /// requests in flight may finish until the timeout or a second signal.
    pub(super) async fn run(
        self,
        listener: TcpListener,
        mut signals: StopSignals,
        shutdown_timeout: Duration,
        stop: impl AsyncFnOnce(),
    ) {
        // Dropping the accept loop closes the listener: the kernel refuses new clients from then on.
        tokio::select! {
            () = self.accept(listener) => {}
            () = signals.next() => {}
        }
        tracing::info!(
            "shutting down: requests in flight have {shutdown_timeout:?}; a second signal ends at once"
        );
        let drained = async { tokio::join!(stop(), self.drain.drain()) };
        tokio::select! {
            _ = drained => tracing::info!("every request was answered"),
            () = tokio::time::sleep(shutdown_timeout) => {
                tracing::warn!("some requests were not answered in time");
            }
            () = signals.next() => tracing::warn!("a second signal: ending now"),
        }
    }

    pub(super) async fn accept(&self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    let place = self.open.place().await;
                    // Responses are written whole: there is nothing to coalesce.
                    let _ = stream.set_nodelay(true);
                    tokio::spawn(self.serve(stream, from.ip().to_canonical(), place));
                }
                Err(error) => {
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        ip: IpAddr,
        place: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + use<H> {
        let (connection, tls) = (self.connection.clone(), self.tls.clone());
        let drain = self.drain.signal();
        let peer = Peer { ip, tls: tls.is_some() };
        async move {
            let Some(tls) = tls else {
                return connection.serve_socket(stream, place, peer, drain).await;
            };
            match tokio::time::timeout(connection.timeouts.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => connection.serve_stream(stream, place, peer, drain).await,
                Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}

/// `SIGTERM` and `SIGINT`.
pub(super) struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

#[derive(Default)]
pub(super) struct ConnectionDrain(watch::Sender<bool>);

/// A connection's end of the drain, which waits while this exists.
#[derive(Clone)]
pub(super) struct DrainSignal(watch::Receiver<bool>);

impl ConnectionDrain {
    pub(super) fn signal(&self) -> DrainSignal {
        DrainSignal(self.0.subscribe())
    }

    /// Tells every connection, and completes when all have ended.
    pub(super) async fn drain(self) {
        self.0.send_replace(true);
        self.0.closed().await;
    }
}

impl DrainSignal {
    /// Completes when the drain begins; never where the server is gone.
    pub(super) async fn begins(&mut self) {
        if self.0.wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await
        }
    }
}
