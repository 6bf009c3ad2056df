//! Connections: accepted up to a number, served, and drained at shutdown.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use super::app::App;
use super::patience::Patient;
use crate::settings::Listen;

/// Streams of one HTTP/2 connection at once, and bytes of headers of one request.
const HTTP2_STREAMS: u32 = 256;
const HTTP2_HEADERS: u32 = 64 * 1024;
/// How long accepting pauses where the process has no descriptors left.
const BREATHER: Duration = Duration::from_millis(100);

/// Takes the address, or says who may have it.
pub(crate) async fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen.addresses()).await.with_context(|| {
        let place = listen.text();
        format!("cannot listen on {place}; is another server running there? --listen takes another")
    })
}

/// Accepts and serves until it is dropped.
pub(crate) struct Server {
    app: App,
    router: Router,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
    http: auto::Builder<TokioExecutor>,
}

impl Server {
    pub(crate) fn new(app: App, router: Router) -> Self {
        let connections = Arc::new(Semaphore::new(app.settings.max_connections));
        Self { app, router, connections, graceful: GracefulShutdown::new(), http: http() }
    }

    /// Accepts for ever.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        loop {
            let place = self.connections.clone().acquire_owned().await;
            let place = place.expect("the semaphore is never closed");
            match listener.accept().await {
                Ok((stream, _)) => self.serve(stream, place),
                Err(error) => {
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(BREATHER).await;
                }
            }
        }
    }

    fn serve(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        // Answers are small and written at once: there is nothing to wait for.
        let _ = stream.set_nodelay(true);
        let (stream, pace) = Patient::new(stream, &self.app.settings);
        let router = self.router.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let answering = pace.request();
            let router = router.clone();
            async move {
                let response = router.oneshot(request.map(axum::body::Body::new)).await;
                drop(answering);
                Ok::<_, Infallible>(response.unwrap_or_else(|never| match never {}))
            }
        });
        let connection = self.http.serve_connection(TokioIo::new(stream), service).into_owned();
        let connection = self.graceful.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!("a connection ended: {error}");
            }
            drop(place);
        });
    }

    /// Lets requests in flight end; idle connections are closed.
    pub(crate) async fn drain(self) {
        self.graceful.shutdown().await;
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
