//! Name lookup and connecting, within one time limit.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

use crate::{BoxError, TrustStore};

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

/// Connects within a timeout that includes the TLS handshake. A failure here has sent no request.
#[derive(Clone)]
pub(crate) struct Connector {
    inner: HttpsConnector<HttpConnector<Resolver>>,
    timeout: Duration,
}

impl Connector {
    pub(crate) fn new(
        trust: TrustStore,
        resolver: Resolver,
        timeout: Duration,
        http2: bool,
    ) -> Self {
        let mut http = HttpConnector::new_with_resolver(resolver);
        http.enforce_http(false);
        http.set_nodelay(true);
        let builder = HttpsConnectorBuilder::new().with_tls_config(trust.into_tls_config());
        let builder = builder.https_or_http();
        let inner = if http2 {
            builder.enable_http2().wrap_connector(http)
        } else {
            builder.enable_http1().wrap_connector(http)
        };
        Self { inner, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = <HttpsConnector<HttpConnector<Resolver>> as Service<Uri>>::Response;
    type Error = BoxError;
    type Future = BoxFuture<Self::Response, BoxError>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.timeout, self.inner.call(uri));
        Box::pin(async move {
            connecting
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
        })
    }
}

/// All addresses of a name are refused by the configured filter.
#[derive(Debug, thiserror::Error)]
#[error("the name leads to no allowed address")]
pub(crate) struct AddressRefused;

/// Looks a name up whenever a connection is made, and drops addresses that are not allowed.
#[derive(Clone, Default)]
pub(crate) struct Resolver {
    pub(crate) allowed: Option<Arc<dyn Fn(IpAddr) -> bool + Send + Sync>>,
}

impl Resolver {
    pub(crate) async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host((host, port)).await?;
        let Some(allowed) = &self.allowed else { return Ok(found.collect()) };
        let addresses: Vec<_> = found.filter(|address| allowed(address.ip())).collect();
        if addresses.is_empty() { Err(io::Error::other(AddressRefused)) } else { Ok(addresses) }
    }
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = BoxFuture<Self::Response, io::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolver = self.clone();
        // The connector sets the port.
        Box::pin(async move { Ok(resolver.addresses(name.as_str(), 0).await?.into_iter()) })
    }
}
