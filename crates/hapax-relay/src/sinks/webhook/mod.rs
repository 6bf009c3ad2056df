//! HTTP(S) webhooks.

mod address;
mod answer;
mod sign;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Clock, SystemClock};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, ring};
use url::{Host, Url};

use self::address::{PrivateAddress, Resolver, is_private};
use self::sign::Secret;
use super::EndpointConfigError;
use crate::{DeliveryError, OutboundMessage, Sink};

const CONNECT: Duration = Duration::from_secs(5);
/// An idle connection is kept for less time than servers keep theirs.
const IDLE: Duration = Duration::from_secs(5);
/// So much of an answer is read, to use the connection again; nobody looks at it.
const MAX_ANSWER: usize = 64 << 10;
/// And for so long.
const REST: Duration = Duration::from_secs(1);

/// Headers that a row cannot set: they are the connection's, or ours.
const NOT_THE_ROWS: &[&str] = &[
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "upgrade",
    "te",
    "trailer",
    "expect",
    "proxy-connection",
    "proxy-authorization",
    "idempotency-key",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

/// Configuration of a [`WebhookSink`].
#[derive(Clone, Default)]
pub struct WebhookConfig {
    secret: Option<String>,
    allow_private: bool,
}

impl WebhookConfig {
    /// The defaults: unsigned, and to public addresses only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Signs requests (HMAC-SHA256, as in Standard Webhooks) with this secret: `whsec_` and base64, or
    /// any text.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    /// Also calls addresses of private networks and of this machine.
    #[must_use]
    pub fn allow_private(mut self, allow: bool) -> Self {
        self.allow_private = allow;
        self
    }
}

/// Posts rows to a URL. The row's id travels as `Idempotency-Key`, the payload is the body.
///
/// A status of 2xx is a delivery. Redirects are not followed. 400, 410, 413, 414, 415, 422 and 431
/// are about this very message and final; every other answer is a failed attempt, and `Retry-After`
/// is honoured.
pub struct WebhookSink {
    uri: Uri,
    host: String,
    port: u16,
    client: HttpClient,
    resolver: Resolver,
    secret: Option<Secret>,
    clock: Arc<dyn Clock>,
}

impl WebhookSink {
    /// A webhook at `http://…` or `https://…`.
    ///
    /// # Errors
    /// Where the URL is malformed or leads to a private address, or the secret is none.
    pub fn new(url: &str, config: &WebhookConfig) -> Result<Self, EndpointConfigError> {
        let malformed =
            || EndpointConfigError::new("a URL such as https://example.com/hook is expected");
        let url = Url::parse(url).map_err(|_| malformed())?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EndpointConfigError::new(
                "a webhook's URL takes no user and password; sign it instead",
            ));
        }
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(IpAddr::V4(address)),
            Some(Host::Ipv6(address)) => Some(IpAddr::V6(address)),
            Some(Host::Domain(_)) => None,
            None => return Err(malformed()),
        };
        // Names are looked at whenever they are looked up.
        if literal.is_some_and(is_private) && !config.allow_private {
            return Err(EndpointConfigError::new(
                "the webhook's address is private; --allow-private permits that",
            ));
        }
        let secret = config.secret.as_deref().map(|text| {
            Secret::new(text)
                .ok_or_else(|| EndpointConfigError::new("the webhook's secret cannot be used"))
        });
        let resolver = Resolver { allow_private: config.allow_private };
        Ok(Self {
            uri: url.as_str().parse().map_err(|_| malformed())?,
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(443),
            client: client(resolver.clone(), url.scheme() == "https")?,
            resolver,
            secret: secret.transpose()?,
            clock: Arc::new(SystemClock),
        })
    }

    /// Takes the time from elsewhere.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    fn request(&self, message: &OutboundMessage) -> Result<Request<Full<Bytes>>, DeliveryError> {
        let mut request = Request::new(Full::new(message.item.payload.clone()));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = self.headers(message)?;
        Ok(request)
    }

    fn headers(&self, message: &OutboundMessage) -> Result<HeaderMap, DeliveryError> {
        let mut headers = HeaderMap::new();
        for (name, value) in message.headers("ce-")? {
            let lower = name.to_ascii_lowercase();
            if !NOT_THE_ROWS.contains(&lower.as_str()) {
                put(&mut headers, &lower, value.as_bytes())?;
            }
        }
        let id = message.id();
        let content_type = message.item.content_type.as_deref();
        let content_type = content_type.unwrap_or("application/octet-stream");
        put(&mut headers, CONTENT_TYPE.as_str(), content_type.as_bytes())?;
        put(&mut headers, "idempotency-key", id.as_bytes())?;
        if let Some(secret) = &self.secret {
            let seconds = self.clock.now().0 / 1000;
            let signature = secret.sign(&id, seconds, &message.item.payload);
            put(&mut headers, "webhook-id", id.as_bytes())?;
            put(&mut headers, "webhook-timestamp", seconds.to_string().as_bytes())?;
            put(&mut headers, "webhook-signature", signature.as_bytes())?;
        }
        Ok(headers)
    }
}

#[async_trait]
impl Sink for WebhookSink {
    fn name(&self) -> &'static str {
        "webhook"
    }

    async fn send(&self, message: &OutboundMessage) -> Result<(), DeliveryError> {
        let response = self.client.request(self.request(message)?).await.map_err(|e| failed(&e))?;
        let (status, headers) = (response.status(), response.headers().clone());
        // The status has said it all: a body that does not end must not undo a delivery.
        let rest = Limited::new(response.into_body(), MAX_ANSWER).collect();
        let _ = tokio::time::timeout(REST, rest).await;
        answer::read(status, &headers, self.clock.now())
    }

    /// Asks for a connection, and for nothing over it.
    async fn check(&self) -> Result<(), DeliveryError> {
        let connecting = async {
            let addresses = self.resolver.addresses(&self.host, self.port).await?;
            tokio::net::TcpStream::connect(&addresses[..]).await
        };
        match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(_) => Err(DeliveryError::unreachable("the webhook cannot be reached: timed out")),
        }
    }

    /// Each has a connection of its own, and whoever listens there may be small.
    fn max_in_flight(&self) -> usize {
        32
    }
}

type HttpClient = Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>;

fn client(resolver: Resolver, tls: bool) -> Result<HttpClient, EndpointConfigError> {
    let mut http = HttpConnector::new_with_resolver(resolver);
    http.enforce_http(false);
    http.set_nodelay(true);
    http.set_connect_timeout(Some(CONNECT));
    // The system's certificates are read only where somebody needs them.
    let config = rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|_| EndpointConfigError::new("TLS cannot be used"))?
        .with_root_certificates(if tls { the_systems_roots()? } else { RootCertStore::empty() })
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE)
        .build(connector))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn the_systems_roots() -> Result<RootCertStore, EndpointConfigError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs().certs;
    let (added, _) = roots.add_parsable_certificates(found);
    if added == 0 {
        return Err(EndpointConfigError::new(
            "this system has no root certificates for an https:// webhook; install ca-certificates",
        ));
    }
    Ok(roots)
}

fn put(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<(), DeliveryError> {
    let unfit = || DeliveryError::refused("a header cannot travel").permanent();
    let name = HeaderName::try_from(name).map_err(|_| unfit())?;
    headers.insert(name, HeaderValue::from_bytes(value).map_err(|_| unfit())?);
    Ok(())
}

fn failed(error: &hyper_util::client::legacy::Error) -> DeliveryError {
    if error.is_connect() {
        return unreachable(error);
    }
    DeliveryError::unanswered("the webhook cut the connection without an answer")
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> DeliveryError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<std::io::Error>() {
            if error.get_ref().is_some_and(|inner| inner.is::<PrivateAddress>()) {
                return DeliveryError::unreachable(PrivateAddress.to_string());
            }
            return DeliveryError::unreachable(format!(
                "the webhook cannot be reached: {}",
                error.kind()
            ));
        }
        cause = error.source();
    }
    DeliveryError::unreachable("the webhook cannot be reached")
}
