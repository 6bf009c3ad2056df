//! Requests to a running server, each with a timeout.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hapax_http_client::{HttpClient, HttpClientConfig, TrustStore};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use super::CliError;
use crate::daemon::BoxError;

/// The server answers within 5 s beyond the time that it was asked to wait; the rest is for the network.
const TIMEOUT: Duration = Duration::from_secs(10);
/// More than the server stores.
const MAX_RESPONSE: usize = 64 << 20;
/// The characters that are not encoded in a path. A dot is encoded, because `..` would leave the segment.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');

#[derive(Clone)]
pub(crate) struct ServerClient {
    client: HttpClient,
    base: String,
    authorization: Option<HeaderValue>,
}

pub(crate) struct ClientRequest {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    pub(super) timeout: Duration,
}

/// A response with a status of 2xx.
pub(crate) struct ClientResponse {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl ClientRequest {
    /// A request for `/v1/` and these path segments, each of which is encoded.
    pub(crate) fn new(method: Method, segments: &[&str]) -> Self {
        let mut path = "/v1".to_owned();
        for segment in segments {
            path.push('/');
            path.extend(utf8_percent_encode(segment, PLAIN));
        }
        Self { method, path, headers: Vec::new(), body: Bytes::new(), timeout: TIMEOUT }
    }

    /// Adds a query parameter, where there is a value.
    pub(crate) fn query(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.path.push(if self.path.contains('?') { '&' } else { '?' });
            self.path.push_str(name);
            self.path.push('=');
            self.path.extend(utf8_percent_encode(&value.to_string(), PLAIN));
        }
        self
    }

    /// Adds a header, where there is a value.
    pub(crate) fn header(mut self, name: &'static str, value: Option<String>) -> Self {
        self.headers.extend(value.map(|value| (name, value)));
        self
    }

    pub(crate) fn json(self, value: &serde_json::Value) -> Self {
        self.body(value.to_string().into_bytes())
    }

    /// Sets a body of encoded JSON, which the server checks.
    pub(crate) fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body.into();
        self.header("content-type", Some("application/json".into()))
    }

    /// Extends the timeout by the time that the server is asked to wait.
    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.timeout = TIMEOUT.saturating_add(wait);
        self
    }

    pub(crate) fn timeout_at_most(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(TIMEOUT);
        self
    }

    pub(super) fn into_http(self, base: &str) -> Result<Request<Bytes>, CliError> {
        let request = Request::builder().method(self.method).uri(base.to_owned() + &self.path);
        let headers = self.headers.into_iter();
        let request = headers.fold(request, |request, (name, value)| request.header(name, value));
        let unsendable = |error| CliError::Usage(format!("this cannot be sent: {error}"));
        request.body(self.body).map_err(unsendable)
    }
}

impl ClientResponse {
    /// Any status but 2xx is a [`CliError`].
    pub(super) fn new(
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Self, CliError> {
        let response = Self { status, headers, body };
        if status.is_success() { Ok(response) } else { Err(CliError::refused(&response)) }
    }

    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, CliError> {
        serde_json::from_slice(&self.body).map_err(|_| CliError::not_hapax())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl ServerClient {
    pub(crate) fn new(server: &str, token: Option<&str>) -> Result<Self, CliError> {
        let usage = |text: &str| CliError::Usage(text.into());
        let base = server.trim_end_matches('/').to_owned();
        let tls = base.starts_with("https://");
        if !(tls || base.starts_with("http://")) {
            return Err(usage("--server takes a URL that starts with http:// or https://"));
        }
        let trust = match tls {
            true => TrustStore::system().map_err(|error| CliError::Local(error.to_string()))?,
            false => TrustStore::empty(),
        };
        // No idle connections: a renewal must not be lost on one that died unnoticed.
        let client = HttpClientConfig::new(trust)
            .connect_timeout(TIMEOUT)
            .idle_timeout(Duration::ZERO)
            .build();
        let mut authorization = match token {
            Some(token) => Some(
                HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| usage("the access token is no header value"))?,
            ),
            None => basic_authorization(&base),
        };
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self { client, base, authorization })
    }

    /// Sends a request. Any status but 2xx is a [`CliError`].
    pub(crate) async fn send(&self, request: ClientRequest) -> Result<ClientResponse, CliError> {
        let timeout = request.timeout;
        let request = self.authorized(request)?;
        let sending = async { self.read(self.client.request(request).await?).await };
        self.with_timeout(timeout, sending).await?
    }

    /// Sends a request whose response has no end of its own. Only the response's head has a time
    /// limit; any status but 2xx is a [`CliError`].
    pub(crate) async fn stream(
        &self,
        request: ClientRequest,
    ) -> Result<Response<Incoming>, CliError> {
        let timeout = request.timeout;
        let request = self.authorized(request)?;
        let opening = async {
            let response = self.client.request(request).await?;
            if response.status().is_success() {
                return Ok(Ok(response));
            }
            let refused = self.read(response).await?.err();
            Ok(Err(refused.unwrap_or_else(CliError::not_hapax)))
        };
        self.with_timeout(timeout, opening).await?
    }

    async fn read(
        &self,
        response: Response<Incoming>,
    ) -> Result<Result<ClientResponse, CliError>, BoxError> {
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
        Ok(ClientResponse::new(parts.status, parts.headers, body))
    }

    /// Turns a missing response into a [`CliError`] that names the innermost cause.
    async fn with_timeout<T>(
        &self,
        timeout: Duration,
        responding: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, CliError> {
        let reason = match tokio::time::timeout(timeout, responding).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => {
                let error: &(dyn Error + 'static) = &*error;
                let causes = std::iter::successors(Some(error), |&error| error.source());
                causes.last().unwrap_or(error).to_string()
            }
            Err(_) => format!("timed out after {}", humantime::format_duration(timeout)),
        };
        Err(CliError::Unreachable { server: self.base.clone(), reason })
    }

    /// The HTTP request with the caller's credentials.
    fn authorized(&self, request: ClientRequest) -> Result<Request<Full<Bytes>>, CliError> {
        let mut request = request.into_http(&self.base)?.map(Full::from);
        let headers = request.headers_mut();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("hapax/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(value) = &self.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        Ok(request)
    }
}

/// The header for a user and password in the server's URL.
fn basic_authorization(base: &str) -> Option<HeaderValue> {
    let authority = base.split_once("://")?.1.split('/').next()?;
    let credentials = authority.rsplit_once('@')?.0;
    let credentials =
        if credentials.contains(':') { credentials.into() } else { format!("{credentials}:") };
    HeaderValue::try_from(format!("Basic {}", STANDARD.encode(credentials))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_request_key_stays_in_its_segment() {
        let request = ClientRequest::new(Method::GET, &["commands", "POST /orders", "../a?b#c%"]);
        assert_eq!(request.path, "/v1/commands/POST%20%2Forders/%2E%2E%2Fa%3Fb%23c%25");
    }

    #[test]
    fn client_request_value_stays_in_its_parameter() {
        let request = ClientRequest::new(Method::GET, &["operator", "commands"]);
        let request =
            request.query("state", Some("a&b=c")).query("limit", Some(7)).query("x", None::<u8>);
        assert_eq!(request.path, "/v1/operator/commands?state=a%26b%3Dc&limit=7");
    }

    #[test]
    fn server_client_takes_a_url() {
        assert!(ServerClient::new("127.0.0.1:8787", None).is_err());
        assert!(ServerClient::new("https://hapax.internal/", None).is_ok());
    }
}
