//! Connections to upstreams.
//!
//! A request is sent at most once. The pool repeats only what it could not hand to a connection at
//! all: what a connection has taken, and then lost, comes back as an error. So that this is rare, an
//! idle connection is kept for less time than upstreams keep theirs.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tower::Service;

use super::BoxError;
use super::quiet::Watched;
use super::settings::Options;
use super::tls;
use super::upstream::Passed;

/// Sends requests to any upstream, over connections that are kept for the next one.
pub(crate) type Client = legacy::Client<Prompt<HttpsConnector<HttpConnector>>, Watched<Passed>>;

/// How often a quiet HTTP/2 connection is asked whether it is alive, and how long it may take.
const PING: Duration = Duration::from_secs(20);
const PONG: Duration = Duration::from_secs(10);

pub(crate) fn new(options: &Options, tls: bool) -> anyhow::Result<Client> {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    http.set_nodelay(true);
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls::for_upstreams(options, tls)?);
    let builder = builder.https_or_http();
    let connector = if options.upstream_http2 {
        builder.enable_http2().wrap_connector(http)
    } else {
        builder.enable_http1().wrap_connector(http)
    };
    let connector = Prompt { connector, limit: options.connect_timeout };
    let mut client = legacy::Client::builder(TokioExecutor::new());
    client
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(options.upstream_idle.0)
        .http2_only(options.upstream_http2)
        .http2_keep_alive_interval(PING)
        .http2_keep_alive_timeout(PONG)
        .http2_keep_alive_while_idle(true);
    Ok(client.build(connector))
}

/// Connects within a limit, the TLS handshake included. What fails here has sent no request.
#[derive(Clone)]
pub(crate) struct Prompt<C> {
    connector: C,
    limit: Duration,
}

impl<C> Service<Uri> for Prompt<C>
where
    C: Service<Uri>,
    C::Error: Into<BoxError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.limit, self.connector.call(uri));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            }
        })
    }
}
