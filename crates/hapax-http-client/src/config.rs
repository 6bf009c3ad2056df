use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Body;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::connect::{Connector, Resolver};
use crate::{BoxError, HttpClient, TrustStore};

/// How often an idle HTTP/2 connection is pinged, and how long the answer may take.
const HTTP2_PING_INTERVAL: Duration = Duration::from_secs(20);
const HTTP2_PING_TIMEOUT: Duration = Duration::from_secs(10);

/// How many headers a response may have, and how large they may be together in HTTP/2.
const MAX_RESPONSE_HEADERS: usize = 1024;
const MAX_HTTP2_RESPONSE_HEADER_BYTES: u32 = 256 * 1024;

/// The configuration of an [`HttpClient`].
///
/// ```
/// use std::time::Duration;
/// use hapax_http_client::{HttpClient, HttpClientConfig, TrustStore};
///
/// let plain: HttpClient = HttpClientConfig::new(TrustStore::empty())
///     .connect_timeout(Duration::from_secs(5))
///     .idle_timeout(Duration::ZERO)
///     .build();
/// ```
#[derive(Clone)]
pub struct HttpClientConfig {
    trust: TrustStore,
    connect_timeout: Duration,
    idle_timeout: Duration,
    max_response: usize,
    http2: bool,
    resolver: Resolver,
}

/// Trusts the system's root certificates; without any, only `http://` addresses can be called.
impl Default for HttpClientConfig {
    fn default() -> Self {
        Self::new(TrustStore::system().unwrap_or_else(|_| {
            tracing::warn!(
                "this system has no root certificates, so that nothing can be reached at https://; \
                 install ca-certificates"
            );
            TrustStore::empty()
        }))
    }
}

impl HttpClientConfig {
    /// Believes servers whose certificates this store trusts.
    pub fn new(trust: TrustStore) -> Self {
        Self {
            trust,
            connect_timeout: Duration::from_secs(3),
            // Node and uvicorn close idle connections after 5 s, gunicorn after 2 s.
            idle_timeout: Duration::from_secs(1),
            max_response: 1 << 20,
            http2: false,
            resolver: Resolver::default(),
        }
    }

    /// How long the name lookup, the connection and the TLS handshake may take together; 3 s by
    /// default.
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long an idle connection stays in the pool; 1 s by default, and zero pools none.
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// The longest response body that [`HttpClient::call`] reads; 1 MiB by default.
    #[must_use]
    pub fn max_response(mut self, bytes: usize) -> Self {
        self.max_response = bytes;
        self
    }

    /// Speaks only HTTP/2, without TLS too (prior knowledge); HTTP/1.1 by default.
    #[must_use]
    pub fn http2(mut self, only: bool) -> Self {
        self.http2 = only;
        self
    }

    /// Connects only to addresses that `allowed` accepts, checked after every name lookup because the
    /// addresses of a name may change. An address that stands in the URL itself is not looked up: the
    /// caller has to check it.
    #[must_use]
    pub fn allowed_addresses(
        mut self,
        allowed: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.resolver = Resolver { allowed: Some(Arc::new(allowed)) };
        self
    }

    /// A client without connections.
    pub fn build<B>(self) -> HttpClient<B>
    where
        B: Body + Send,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let Self { trust, connect_timeout, idle_timeout, max_response, http2, resolver } = self;
        let connector = Connector::new(trust, resolver.clone(), connect_timeout, http2);
        let mut builder = Client::builder(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle_timeout)
            .http1_max_headers(MAX_RESPONSE_HEADERS)
            .http2_only(http2)
            .http2_max_header_list_size(MAX_HTTP2_RESPONSE_HEADER_BYTES)
            .http2_keep_alive_interval(HTTP2_PING_INTERVAL)
            .http2_keep_alive_timeout(HTTP2_PING_TIMEOUT)
            .http2_keep_alive_while_idle(true);
        if idle_timeout.is_zero() {
            builder.pool_max_idle_per_host(0);
        }
        HttpClient { client: builder.build(connector), resolver, connect_timeout, max_response }
    }
}
