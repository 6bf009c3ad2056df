//! One HTTP call at a time, each within its limit.

use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, Method, Request, StatusCode};
use ureq::tls::{RootCerts, TlsConfig};

use super::Failure;

/// The server answers within 5 s of whatever it was asked to wait; the rest is for the way.
const LIMIT: Duration = Duration::from_secs(10);
/// More than the server stores, and a bound all the same.
const LARGEST_ANSWER: u64 = 64 << 20;
/// What stays as it is in a path. A dot does not: `..` would be a path of its own.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~').remove(b':');

/// A client of one server.
#[derive(Clone)]
pub(crate) struct Api {
    agent: ureq::Agent,
    base: String,
    bearer: Option<String>,
}

/// One request.
pub(crate) struct Call {
    method: Method,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    pub(super) limit: Duration,
}

/// What the server answered, where it did as asked.
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Call {
    /// A call of `/v1/` and these segments, each encoded on its own.
    pub(crate) fn new(method: Method, segments: &[&str]) -> Self {
        let mut path = "/v1".to_owned();
        for segment in segments {
            path.push('/');
            path.extend(utf8_percent_encode(segment, PLAIN));
        }
        Self { method, path, headers: Vec::new(), body: Vec::new(), limit: LIMIT }
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
        self.body = body;
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
    pub(super) fn request(self, base: &str) -> Result<Request<Vec<u8>>, Failure> {
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
        body: Vec<u8>,
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
        let base = server.trim_end_matches('/').to_owned();
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            let text = "--server takes a URL that starts with http:// or https://";
            return Err(Failure::Usage(text.into()));
        }
        // Certificates as the machine trusts them, a company's own included. No redirects and no
        // proxies: the tickets and tokens in a call are meant for this server alone. No idle
        // connections: one that died unnoticed would cost a renewal.
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(None)
            .max_idle_connections(0)
            .user_agent(concat!("hapax/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .build();
        let bearer = token.map(|token| format!("Bearer {token}"));
        Ok(Self { agent: config.into(), base, bearer })
    }

    /// Sends it off the async threads. Anything but a 2xx is a [`Failure`].
    pub(crate) async fn send(&self, call: Call) -> Result<Answer, Failure> {
        let this = self.clone();
        let sent = tokio::task::spawn_blocking(move || this.send_now(call)).await;
        sent.map_err(|error| Failure::Local(error.to_string()))?
    }

    /// Opens an answer that has no end of its own; its status and its body as it comes.
    pub(crate) async fn stream(
        &self,
        call: Call,
    ) -> Result<(StatusCode, ureq::BodyReader<'static>), Failure> {
        let this = self.clone();
        let opened = tokio::task::spawn_blocking(move || this.stream_now(call)).await;
        opened.map_err(|error| Failure::Local(error.to_string()))?
    }

    fn stream_now(&self, call: Call) -> Result<(StatusCode, ureq::BodyReader<'static>), Failure> {
        let limit = Some(call.limit);
        let request = self.signed(call)?;
        let request = self.agent.configure_request(request);
        let request = request.timeout_connect(limit).timeout_recv_response(limit).build();
        let response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok((parts.status, body.into_reader()));
        }
        let body = body.into_with_config().limit(LARGEST_ANSWER).read_to_vec();
        let body = body.map_err(|error| self.unreachable(&error))?;
        Err(Failure::of(&Answer { status: parts.status, headers: parts.headers, body }))
    }

    /// The request, with the caller's token.
    fn signed(&self, call: Call) -> Result<Request<Vec<u8>>, Failure> {
        let mut request = call.request(&self.base)?;
        if let Some(bearer) = &self.bearer {
            let mut value = ureq::http::HeaderValue::from_str(bearer)
                .map_err(|_| Failure::Usage("the access token is no header value".into()))?;
            value.set_sensitive(true);
            request.headers_mut().insert("authorization", value);
        }
        Ok(request)
    }

    fn send_now(&self, call: Call) -> Result<Answer, Failure> {
        let limit = call.limit;
        let request = self.signed(call)?;
        let request = self.agent.configure_request(request).timeout_global(Some(limit)).build();
        let response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        let (parts, body) = response.into_parts();
        let body = body
            .into_with_config()
            .limit(LARGEST_ANSWER)
            .read_to_vec()
            .map_err(|error| self.unreachable(&error))?;
        Answer::new(parts.status, parts.headers, body)
    }

    fn unreachable(&self, error: &ureq::Error) -> Failure {
        Failure::Unreachable { server: self.base.clone(), reason: error.to_string() }
    }
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
