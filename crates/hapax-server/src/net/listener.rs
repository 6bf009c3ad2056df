//! Connections: accepted up to a number, served, and drained at shutdown.

use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;

use super::drain::Drain;
use super::pace::{InFlight, Refusals};
use super::signals::Signals;
use super::talk::Talk;
use crate::settings::ListenAddress;

/// How long accepting pauses where the process has no descriptors left.
const BREATHER: Duration = Duration::from_millis(100);

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// Takes an address, or says who may have it.
pub(crate) async fn bind(flag: &str, listen: &ListenAddress) -> anyhow::Result<TcpListener> {
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
    drain: Drain,
}

impl<A: Answers> Server<A> {
    pub(crate) fn new(answers: A, tls: Option<TlsAcceptor>, limits: Limits) -> Self {
        Self {
            talk: Talk::new(answers, limits),
            tls,
            connections: Arc::new(Semaphore::new(limits.connections)),
            drain: Drain::default(),
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
        let drained = async { tokio::join!(stop(), self.drain.drain()) };
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
                    tokio::spawn(self.serve(stream, from.ip().to_canonical(), place));
                }
                Err(error) => {
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        ip: IpAddr,
        place: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send + use<A> {
        let (talk, tls, stop) = (self.talk.clone(), self.tls.clone(), self.drain.watcher());
        let peer = Peer { ip, tls: tls.is_some() };
        async move {
            let Some(tls) = tls else { return talk.bare(stream, peer, stop, place).await };
            let _place = place;
            match tokio::time::timeout(talk.limits.header, tls.accept(stream)).await {
                Ok(Ok(stream)) => talk.with(stream, peer, stop).await,
                Ok(Err(error)) => tracing::debug!("a TLS handshake failed: {error}"),
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}
