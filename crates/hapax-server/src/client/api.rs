//! One HTTP call at a time, each within its limit.

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

use super::Failure;
use crate::daemon::BoxError;

/// The server answers within 5 s of whatever it was asked to wait; the rest is for the way.
const LIMIT: Duration = Duration::from_secs(10);
/// More than the server stores, and a bound all the same.
const MAX_RESPONSE: usize = 64 << 20;
/// What stays as it is in a path. A dot does not: `..` would be a path of its own.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Api {
    client: HttpClient,
    base: String,
    authorization: Option<HeaderValue>,
}

/// One request.
pub(crate) struct Call {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
    pub(super) limit: Duration,
}

/// What the server answered, where it did as asked.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Call {
    /// A call of `/v1/` and these segments, each encoded on its own.
    pub(crate) fn new(method: Method, segments: &[&str]) -> Self {
        let mut path = "/v1".to_owned();
        for segment in segments {
            path.push('/');
            path.extend(utf8_percent_encode(segment, PLAIN));
        }
        Self { method, path, headers: Vec::new(), body: Bytes::new(), limit: LIMIT }
    }

    /// With one more parameter in the query, where there is a value.
    pub(crate) fn query(mut self, name: &str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.path.push(if self.path.contains('?') { '&' } else { '?' });
            self.path.push_str(name);
            self.path.push('=');
            self.path.extend(utf8_percent_encode(&value.to_string(), PLAIN));
        }
        self
    }

    /// With a header, where there is a value.
    pub(crate) fn header(mut self, name: &'static str, value: Option<String>) -> Self {
        self.headers.extend(value.map(|value| (name, value)));
        self
    }

    /// With a JSON body.
    pub(crate) fn json(self, value: &serde_json::Value) -> Self {
        self.body(value.to_string().into_bytes())
    }

    /// With a body that is JSON already, or claims to be.
    pub(crate) fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body.into();
        self.header("content-type", Some("application/json".into()))
    }

    /// The server will wait this long before it answers.
    pub(crate) fn waiting(mut self, wait: Duration) -> Self {
        self.limit = LIMIT.saturating_add(wait);
        self
    }

    /// Gives up after this long.
    pub(crate) fn within(mut self, limit: Duration) -> Self {
        self.limit = limit.min(LIMIT);
        self
    }

    /// As it goes to the server at `base`.
    pub(super) fn request(self, base: &str) -> Result<Request<Bytes>, Failure> {
        let request = Request::builder().method(self.method).uri(base.to_owned() + &self.path);
        let headers = self.headers.into_iter();
        let request = headers.fold(request, |request, (name, value)| request.header(name, value));
        let unsendable = |error| Failure::Usage(format!("this cannot be sent: {error}"));
        request.body(self.body).map_err(unsendable)
    }
}

impl Answer {
    /// Anything but a 2xx is a [`Failure`].
    pub(super) fn new(
        status: StatusCode,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Self, Failure> {
        let answer = Self { status, headers, body };
        if status.is_success() { Ok(answer) } else { Err(Failure::of(&answer)) }
    }

    /// The body as what it should be.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        serde_json::from_slice(&self.body).map_err(|_| Failure::not_hapax())
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

impl Api {
    pub(crate) fn new(server: &str, token: Option<&str>) -> Result<Self, Failure> {
        let usage = |text: &str| Failure::Usage(text.into());
        let base = server.trim_end_matches('/').to_owned();
        let tls = base.starts_with("https://");
        if !(tls || base.starts_with("http://")) {
            return Err(usage("--server takes a URL that starts with http:// or https://"));
        }
        let trust = match tls {
            true => TrustStore::system().map_err(|error| Failure::Local(error.to_string()))?,
            false => TrustStore::empty(),
        };
        // No idle connections: a renewal must not be lost on one that died unnoticed.
        let client = HttpClientConfig::new(trust)
            .connect_timeout(LIMIT)
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

    /// Sends a request. Any status but 2xx is a [`Failure`].
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Failure> {
        let (request, limit) = self.request(call)?;
        let sending = async { self.read(self.client.request(request).await?).await };
        self.within(limit, sending).await?
    }

    /// Sends a request whose response has no end of its own. Only the response's head has a time
    /// limit; any status but 2xx is a [`Failure`].
    pub(crate) async fn stream(&self, call: Call) -> Result<Response<Incoming>, Failure> {
        let (request, limit) = self.request(call)?;
        let opening = async {
            let response = self.client.request(request).await?;
            if response.status().is_success() {
                return Ok(Ok(response));
            }
            let refused = self.read(response).await?.err();
            Ok(Err(refused.unwrap_or_else(Failure::not_hapax)))
        };
        self.within(limit, opening).await?
    }

    async fn read(
        &self,
        response: Response<Incoming>,
    ) -> Result<Result<Answer, Failure>, BoxError> {
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, MAX_RESPONSE).collect().await?.to_bytes();
        Ok(Answer::new(parts.status, parts.headers, body))
    }

    /// Turns a missing response into a [`Failure`] that names the innermost cause.
    async fn within<T>(
        &self,
        limit: Duration,
        responding: impl Future<Output = Result<T, BoxError>>,
    ) -> Result<T, Failure> {
        let reason = match tokio::time::timeout(limit, responding).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => {
                let error: &(dyn Error + 'static) = &*error;
                let causes = std::iter::successors(Some(error), |&error| error.source());
                causes.last().unwrap_or(error).to_string()
            }
            Err(_) => format!("timed out after {}", humantime::format_duration(limit)),
        };
        Err(Failure::Unreachable { server: self.base.clone(), reason })
    }

    /// The request with the caller's credentials, and its time limit.
    fn request(&self, call: Call) -> Result<(Request<Full<Bytes>>, Duration), Failure> {
        let limit = call.limit;
        let mut request = call.request(&self.base)?.map(Full::from);
        let headers = request.headers_mut();
        headers.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("hapax/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(value) = &self.authorization {
            headers.insert(AUTHORIZATION, value.clone());
        }
        Ok((request, limit))
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
    fn keys_cannot_leave_their_segment() {
        let call = Call::new(Method::GET, &["commands", "POST /orders", "../a?b#c%"]);
        assert_eq!(call.path, "/v1/commands/POST%20%2Forders/%2E%2E%2Fa%3Fb%23c%25");
    }

    #[test]
    fn values_cannot_leave_their_parameter() {
        let call = Call::new(Method::GET, &["operator", "commands"]);
        let call =
            call.query("state", Some("a&b=c")).query("limit", Some(7)).query("x", None::<u8>);
        assert_eq!(call.path, "/v1/operator/commands?state=a%26b%3Dc&limit=7");
    }

    #[test]
    fn a_server_is_a_url() {
        assert!(Api::new("127.0.0.1:8787", None).is_err());
        assert!(Api::new("https://hapax.internal/", None).is_ok());
    }
}
