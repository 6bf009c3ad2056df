//! HTTP(S) webhooks.

mod address;
mod answer;
mod sign;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use hapax_core::{Clock, SystemClock};
use hapax_http_client::{HttpClient, HttpClientConfig, HttpError, TrustStore};
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use url::{Host, Url};

use self::address::is_private;
use self::sign::Secret;
use super::EndpointConfigError;
use crate::{DeliveryError, OutboundMessage, Sink};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections are closed early, before the server closes them.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// A response's body is read up to this size, for up to `RESPONSE_BODY_TIMEOUT`, only so that the
/// connection can be reused.
const MAX_RESPONSE: usize = 64 << 10;
const RESPONSE_BODY_TIMEOUT: Duration = Duration::from_secs(1);

/// Headers that a row cannot set, because the connection or hapax sets them.
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
    /// The defaults: no signature, and public addresses only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Signs requests (HMAC-SHA256, as in Standard Webhooks) with this secret: `whsec_` followed by
    /// base64, or any other text.
    #[must_use]
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(secret.into());
        self
    }

    hapax_core::builder_methods! {
        /// Sets whether addresses of private networks and of this machine are permitted.
        allow_private: bool;
    }
}

/// Posts rows to a URL. The row's id is the `Idempotency-Key`, and the payload is the body.
///
/// A 2xx status is a delivery. Redirects are not followed. 400, 410, 413, 414, 415, 422 and 431
/// concern the message itself and are final. 408, 425, 429, 502, 503 and 504 concern the server: they are
/// failed attempts only while it takes other messages. Every other status is a failed attempt.
/// `Retry-After` is honoured.
pub struct WebhookSink {
    uri: Uri,
    host: String,
    port: u16,
    client: HttpClient,
    secret: Option<Secret>,
    clock: Arc<dyn Clock>,
}

impl WebhookSink {
    /// A webhook at `http://…` or `https://…`.
    ///
    /// # Errors
    /// If the URL is malformed or has a private address, or the secret cannot be used.
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
        // The HTTP client checks the addresses of host names at each lookup.
        if literal.is_some_and(is_private) && !config.allow_private {
            return Err(EndpointConfigError::new(
                "the webhook's address is private; --allow-private permits that",
            ));
        }
        let secret = config.secret.as_deref().map(|text| {
            Secret::new(text)
                .ok_or_else(|| EndpointConfigError::new("the webhook's secret cannot be used"))
        });
        Ok(Self {
            uri: url.as_str().parse().map_err(|_| malformed())?,
            host: url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned(),
            port: url.port_or_known_default().unwrap_or(443),
            client: http_client(url.scheme() == "https", config.allow_private)?,
            secret: secret.transpose()?,
            clock: Arc::new(SystemClock),
        })
    }

    hapax_core::builder_methods! {
        /// Sets the clock; the system's clock by default.
        clock: Arc<dyn Clock>;
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
        let request = self.request(message)?;
        let response = self.client.request(request).await.map_err(|e| delivery_error(e.into()))?;
        let (status, headers) = (response.status(), response.headers().clone());
        // The status alone decides: a body that does not end must not undo a delivery.
        let rest = Limited::new(response.into_body(), MAX_RESPONSE).collect();
        let _ = tokio::time::timeout(RESPONSE_BODY_TIMEOUT, rest).await;
        answer::read(status, &headers, self.clock.now())
    }

    /// Connects without sending a request.
    async fn check(&self) -> Result<(), DeliveryError> {
        let connected = self.client.check_connection(&self.host, self.port).await;
        connected.map_err(|error| delivery_error((&error).into()))
    }

    /// Each message in flight has a connection of its own, and the receiver may be a small server.
    fn max_in_flight(&self) -> usize {
        32
    }
}

fn http_client(tls: bool, allow_private: bool) -> Result<HttpClient, EndpointConfigError> {
    // The system's certificates are loaded only for `https://`.
    let trust = match tls {
        true => TrustStore::system().map_err(|_| {
            EndpointConfigError::new(
                "this system has no root certificates for an https:// webhook; install \
                 ca-certificates",
            )
        })?,
        false => TrustStore::empty(),
    };
    let config =
        HttpClientConfig::new(trust).connect_timeout(CONNECT_TIMEOUT).idle_timeout(IDLE_TIMEOUT);
    let config = match allow_private {
        true => config,
        false => config.allowed_addresses(|address| !is_private(address)),
    };
    Ok(config.build())
}

fn put(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<(), DeliveryError> {
    let unfit = || DeliveryError::refused("a header cannot travel").permanent();
    let name = HeaderName::try_from(name).map_err(|_| unfit())?;
    headers.insert(name, HeaderValue::from_bytes(value).map_err(|_| unfit())?);
    Ok(())
}

/// The error of a request that got no response.
fn delivery_error(error: HttpError) -> DeliveryError {
    match error {
        HttpError::AddressRefused => DeliveryError::unreachable(
            "the webhook's name leads to a private address; --allow-private permits that",
        ),
        HttpError::NotSent(io::ErrorKind::Other) => {
            DeliveryError::unreachable("the webhook cannot be reached")
        }
        HttpError::NotSent(kind) => {
            DeliveryError::unreachable(format!("the webhook cannot be reached: {kind}"))
        }
        _ => DeliveryError::unanswered("the webhook cut the connection without an answer"),
    }
}
